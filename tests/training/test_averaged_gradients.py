"""Gradients averaged by DDP, without other ranks."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from laptime.training.strategies.data import AveragedGradients


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_training_that_is_over_leaves_no_exchange_behind_on_its_network(alone):
    network = nn.Linear(3, 2)
    averaged = AveragedGradients(network, torch.device("cpu"), losses=1)
    averaged.network(torch.ones(4, 3)).sum().backward()
    assert network.weight.grad is not None
    gone = weakref.ref(averaged.network)
    del averaged
    gc.collect()
    assert gone() is None
