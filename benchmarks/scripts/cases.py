"""All cases, by where they come from."""

from __future__ import annotations

from benchmarks.scripts import cases_karpathy, cases_libraries, cases_pytorch

CASES = (*cases_pytorch.CASES, *cases_karpathy.CASES, *cases_libraries.CASES)
