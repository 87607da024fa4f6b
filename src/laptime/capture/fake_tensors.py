"""Replaces a network's tensors with fake ones: shape and type, no memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode


def fake_mode() -> FakeTensorMode:
    """The mode in which tensors are made without memory.

    By default torch hands out a null pointer where a kernel of the user's own asks for a tensor's address,
    and the kernel crashes the process; here asking raises.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode._allow_unsafe_data_ptr_access = False
    return mode


@contextmanager
def unlogged() -> Iterator[None]:
    """Silence torch's log of a failing operation; the error is raised anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def without_memory(network: nn.Module, mode: FakeTensorMode) -> Iterator[list[Tensor]]:
    """The network's parameters and buffers exchanged for fakes of theirs; everything is put back."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    made: dict[int, Tensor] = {}
    with mode:
        for module in network.modules():
            stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for store in stores:
                for key, value in store.items():
                    if value is None:
                        continue
                    if id(value) not in made:
                        made[id(value)] = _fake(value)
                    kept.append((store, key, value))
                    store[key] = made[id(value)]
    try:
        yield list(made.values())
    finally:
        for store, key, value in kept:
            store[key] = value


def fakes(batch: Any) -> Any:
    """A batch of fakes, in tuples, lists and dictionaries as it was. Within the mode."""
    if isinstance(batch, Tensor):
        return _fake(batch)
    if isinstance(batch, list | tuple):
        return type(batch)(map(fakes, batch))
    if isinstance(batch, dict):
        return {key: fakes(value) for key, value in batch.items()}
    return batch


def _fake(tensor: Tensor) -> Tensor:
    """A fake CPU tensor of the same shape and type."""
    made = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made
