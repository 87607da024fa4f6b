"""Shared by all tests: one thread for torch, so that two cores and a loaded machine give steady tests."""

import gc
import sys

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def _what_stays_is_looked_through_once():
    # Half a million objects of torch, transformers and Lightning stay to the end: half a second at every
    # gc.collect(), of which Hugging Face's trainer and our benchmarks make many.
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # or duckdb lists all that was never freed
    # Torch's compiler caches hold weak references that complain, line after line, when the interpreter ends
    # and torch's own modules are gone before them. The process ends here; nothing needs freeing.
    if "torch.multiprocessing.reductions" in sys.modules:
        torch.multiprocessing.reductions.StorageWeakRef.__del__ = lambda _: None
