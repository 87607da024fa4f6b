"""What `laptime predict` predicts: a network, read at any batch size; a saved workload; a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.cli import synthetic
from laptime.cli.options import wrong
from laptime.cli.quiet import quiet_torch

if TYPE_CHECKING:
    from laptime.hardware import Device
    from laptime.model import Workload
    from laptime.model.prediction import Prediction

Read = Callable[[int], "Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a user says of a network; a saved workload and a run have their own. None: not said."""

    inputs: Sequence[str] | None
    precision: str | None
    optimizer: str | None
    inference: bool

    def refuse(self, what: str, *, inference: bool) -> None:
        """End where something was said that cannot be changed any more."""
        said = {"--input": self.inputs, "--precision": self.precision, "--optimizer": self.optimizer}
        for option, value in (said | ({"--inference": self.inference} if inference else {})).items():
            if value:
                wrong(option, f"{what} has its own; name the network instead to change it")


class Subject:
    """A network: its workload at any batch size, each read once, and a step of it on devices."""

    batch = 32  # where none is asked for
    traced = True  # a network, rather than what is left of one

    def __init__(self, read: Read) -> None:
        self.read: Read = cache(read)

    def predict(self, size: int, devices: Sequence[Device], **training: Any) -> list[Prediction]:
        """A step of that batch on each device."""
        from laptime.estimate.predict import predict_all

        return predict_all(self.read(size), devices, **training)


class _Saved(Subject):
    traced = False

    def __init__(self, path: str) -> None:
        from laptime.model import Workload
        from laptime.ops.rescaling import rescaled

        saved = Workload.load(path)
        super().__init__(lambda size: rescaled(saved, size))
        self.batch = saved.batch


class _OfRun(Subject):
    """A run: what its network asks for, and predictions that what it took corrects."""

    traced = False

    def __init__(self, path: str, mode: str | None) -> None:
        from laptime.estimate.measured_step import workload_of
        from laptime.ops.rescaling import rescaled
        from laptime.runs import load

        self._run, self._mode = load(path), mode
        own = workload_of(self._run)
        super().__init__(lambda size: rescaled(own, size))
        self.batch = own.batch

    def predict(self, size: int, devices: Sequence[Device], **training: Any) -> list[Prediction]:
        from laptime.estimate.run_correction import predict_run

        return [predict_run(self._run, one, batch=size, mode=self._mode, **training) for one in devices]


def subject(name: str, said: Words) -> Subject:
    """What the target names: a saved workload, a run, or a network."""
    if name.endswith(".json") and Path(name).name != "run.json":
        said.refuse("a saved workload", inference=True)
        return _Saved(name)
    if Path(name).name == "run.json" or (Path(name) / "run.json").is_file():
        said.refuse("a run", inference=False)
        return _OfRun(name, "inference" if said.inference else None)
    quiet_torch()
    from laptime import api

    mode = "inference" if said.inference else "training"
    network, make, loss = _network(name, said.inputs, mode)
    words: dict[str, Any] = {
        "precision": said.precision or "fp32",
        "optimizer": said.optimizer or "momentum",
        "mode": mode,
    }
    return Subject(lambda size: api.workload(network, example=make(size), loss=loss, name=name, **words))


def _network(name: str, inputs: Sequence[str] | None, mode: str) -> tuple[Any, Any, Any]:
    """A network without memory, what makes a batch for it, and its loss."""
    import torch

    from laptime.training import target

    try:
        given = [synthetic.parse(text) for text in inputs or ()]
    except ValueError as error:
        wrong("--input", str(error))
    known = None
    if ":" not in name:
        from laptime.training.networks.registry import entry

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
