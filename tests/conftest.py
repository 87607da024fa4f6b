"""Shared by all tests: one thread for torch, so that two cores and a loaded machine give steady tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
