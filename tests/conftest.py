"""Shared by all tests: one thread for torch, so that two cores and a loaded machine give steady tests."""

import sys

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


def pytest_unconfigure():
    # Torch's compiler caches hold weak references that complain, line after line, when the interpreter ends
    # and torch's own modules are gone before them. The process ends here; nothing needs freeing.
    if "torch.multiprocessing.reductions" in sys.modules:
        torch.multiprocessing.reductions.StorageWeakRef.__del__ = lambda _: None
