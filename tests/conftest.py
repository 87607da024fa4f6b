"""Shared by all tests: the same answer every time, also on two cores and a loaded machine."""

import gc
import random
import sys

import numpy as np
import pytest
import torch
from hypothesis import settings

# A property is tried with the same examples every time, however slow the machine. The search for new ones is
# a slow test of its own (`test_random_search`), which loads the other profile.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile(
    "random", derandomize=False, database=None, deadline=None, max_examples=500, print_blob=True
)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Weights and batches are the same in every run, whichever tests ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


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
