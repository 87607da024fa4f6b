"""docs/reference.md, written from the code: `make docs` renews it, a test says when that is due."""

from __future__ import annotations

from pathlib import Path

from tools.reference import commands, files, public

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"

_HEAD = """\
# Reference

Written from the code by `make docs`; a test fails when it is out of date. Seconds, bytes and FLOPs
everywhere; `–` is no value.

[Commands](#commands) · [Python](#python) · [Errors](#errors) · [The run directory](#the-run-directory) ·
[`show --json`](#the-json-of-laptime-show) · configuration files: [configuration.md](configuration.md)
"""


def reference() -> str:
    """The whole page."""
    written = (files.errors(), files.run_directory(), files.shown())
    return "\n".join((_HEAD, commands.section(), public.section(), *written))
