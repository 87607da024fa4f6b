"""What `laptime predict` predicts: a network without memory, read at any batch size, or a saved workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from laptime.cli import synthetic
from laptime.cli.options import wrong
from laptime.cli.quiet import quiet_torch

if TYPE_CHECKING:
    from laptime.workload import Workload

Read = Callable[[int], "Workload"]


def is_saved(name: str) -> bool:
    """Whether the target is a workload, which has one batch size and no other."""
    return name.endswith(".json")


def reader(name: str, inputs: Sequence[str] | None, precision: str, mode: str, optimizer: str) -> Read:
    """A function that reads the workload of a batch size, each of them once."""
    from functools import cache

    if is_saved(name):
        from laptime.workload import Workload

        saved = Workload.load(name)
        return lambda _: saved
    quiet_torch()
    from laptime import api

    network, make, loss = _subject(name, inputs, mode)
    words = {"precision": precision, "mode": mode, "optimizer": optimizer, "loss": loss, "name": name}
    return cache(lambda size: api.workload(network, example=make(size), **words))


def _subject(name: str, inputs: Sequence[str] | None, mode: str) -> tuple[Any, Any, Any]:
    """A network without memory, what makes a batch for it, and its loss."""
    import torch

    from laptime.train import target

    try:
        given = [synthetic.parse(text) for text in inputs or ()]
    except ValueError as error:
        wrong("--input", str(error))
    known = None
    if ":" not in name:
        from laptime.train.networks.registry import entry

        known = entry(name)
    elif not given:
        target.attribute(name)
        wrong("--input", f"{name} does not say what it takes; give one sample's shape, such as 3x224x224")
    with torch.device("meta"):
        network = target.network(name)
    if given or known is None:
        shapes = [(one.shape, getattr(torch, one.dtype)) for one in given]
        return network, _maker(shapes), None
    x = (known.input, torch.int64 if known.ids else torch.float32)
    if mode == "inference":
        return network, _maker([x]), None
    y = (known.input if known.ids and not known.classes else (), torch.int64)
    goal = known.goal(None)
    return network, _maker([x, y]), lambda net, batch: goal.judge(net, batch).loss


def _maker(shapes: Sequence[tuple[tuple[int, ...], Any]]) -> Any:
    import torch

    def make(size: int) -> tuple[Any, ...]:
        return tuple(torch.zeros((size, *shape), dtype=dtype, device="meta") for shape, dtype in shapes)

    return make
