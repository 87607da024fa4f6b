"""Shared by all tests: one thread for torch, so that two cores and a loaded machine give steady tests."""

import gc
import sys

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


def pytest_unconfigure():
    # Torch's compiler caches hold weak references that complain, line after line, when the interpreter ends.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        gc.collect()
