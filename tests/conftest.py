"""Shared by all tests: the same answer every time, also on two cores and a loaded machine."""

import gc
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from tests.small_disk import MIB, SmallDisk

# A property is tried with the same examples every time, however slow the machine. The search for new ones is
# a slow test of its own (`test_random_search`), which loads the other profile.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile(
    "random", derandomize=False, database=None, deadline=None, max_examples=500, print_blob=True
)
settings.load_profile("same")

TESTS = Path(__file__).parent


# Over ten seconds each, the longest first: begun last, one of them would keep a single process at the end.
LONGEST = (
    "browser/test_dashboard.py",
    "files/test_fuzz.py",
    "cli/test_run.py",
    "training/launch/test_hosts.py",
    "browser/test_report_page.py",
    "recorder/test_saving.py",
    "training/test_strategies_contract.py",
    "bridges/test_children.py",
    "training/test_zoo_learns.py",
    "cases/test_harmless.py",
    "cases/test_callbacks.py",
    "cases/test_steps.py",
    "recorder/test_faults.py",
    "cli/test_calibrate.py",
    "recorder/test_one_line_more.py",
    "files/test_read.py",
    "cli/test_train.py",
    "training/launch/test_servers.py",
)


def pytest_collection_modifyitems(config, items):
    """Under pytest-xdist, which shares out whole files in this order."""
    if hasattr(config, "workerinput"):
        place = {TESTS / file: number for number, file in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout, so that waiting counts for nothing
def pytest_runtest_protocol(item):
    """Under pytest-xdist, a test marked `alone` waits until the other processes are between two tests."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    import fcntl

    alone = item.get_closest_marker("alone") is not None
    with open(TESTS / "conftest.py") as gate, open(TESTS / "__init__.py") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)  # who waits for the room keeps the others from coming in before
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # closing would not do where a child has the file open too


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


@pytest.fixture
def small_disk(tmp_path):
    """Makes a disk of a given size; a test that needs one is skipped where mounting is not permitted."""
    disks = []

    def make(size=MIB):
        try:
            disks.append(SmallDisk(tmp_path / f"disk-{len(disks)}", size))
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"") or str(error).encode()
            pytest.skip(f"no tmpfs can be mounted here: {said.decode().strip()}")
        return disks[-1]

    yield make
    for disk in disks:
        disk.unmount()


def pytest_unconfigure():
    gc.unfreeze()  # or duckdb lists all that was never freed
    # Torch's compiler caches hold weak references that complain, line after line, when the interpreter ends
    # and torch's own modules are gone before them. The process ends here; nothing needs freeing.
    if "torch.multiprocessing.reductions" in sys.modules:
        torch.multiprocessing.reductions.StorageWeakRef.__del__ = lambda _: None
