"""What `laptime predict` predicts: a network without memory, read at any batch size, or a saved workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from laptime.cli import synthetic
from laptime.cli.options import wrong
from laptime.cli.quiet import quiet_torch

if TYPE_CHECKING:
    from laptime.hardware import Device
    from laptime.predict.prediction import Prediction
    from laptime.workload import Workload

Read = Callable[[int], "Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is predicted: its workload at a batch size, and the only size it has, if it has no other."""

    read: Read
    batch: int | None = None

    def predict(self, size: int, devices: Sequence[Device], **training: Any) -> list[Prediction]:
        """A step of that batch on each device."""
        from laptime.predict.predicting import predict_all

        return predict_all(self.read(size), devices, **training)


def subject(name: str, inputs: Sequence[str] | None, precision: str, mode: str, optimizer: str) -> Subject:
    """What the target names. Each batch size is read once."""
    from functools import cache

    if name.endswith(".json"):
        from laptime.workload import Workload

        saved = Workload.load(name)
        return Subject(read=lambda _: saved, batch=saved.batch)
    quiet_torch()
    from laptime import api

    network, make, loss = _network(name, inputs, mode)
    words = {"precision": precision, "mode": mode, "optimizer": optimizer, "loss": loss, "name": name}
    return Subject(read=cache(lambda size: api.workload(network, example=make(size), **words)))


def _network(name: str, inputs: Sequence[str] | None, mode: str) -> tuple[Any, Any, Any]:
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
