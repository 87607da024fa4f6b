"""What the callbacks for other people's trainers share: a recording per training, in its own directory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import nn
from torch.optim import Optimizer

from laptime.bridges.ranks import follow_first
from laptime.errors import NotJoined, RecordingError
from laptime.recorder.backends import Clock
from laptime.recorder.layer_division import Granularity
from laptime.recorder.recorder import Recorder
from laptime.runs import Run
from laptime.runs.directory import default_out, unused


class RecordOptions(TypedDict, total=False):
    """The options of `laptime.record`."""

    every_step: bool
    budget: float
    layers: Granularity
    kernels: Iterable[int]
    config: Mapping[str, Any]
    clock: Clock


class Trainings:
    """The recordings of one callback, one after the other."""

    def __init__(self, out: str | Path | None, options: RecordOptions) -> None:
        self._out = Path(out) if out is not None else None
        self._options = options
        self._count = 0
        self.recorder: Recorder | None = None
        Recorder(None, out=Path(), **options)  # a wrong option is told now, not when the training starts

    @property
    def active(self) -> Recorder | None:
        """The recording that is running, if any."""
        return self.recorder if self.recorder is not None and self.recorder.active else None

    @property
    def run(self) -> Run:
        """The latest training's run."""
        if self.recorder is None:
            raise RecordingError("no training has started with this callback yet, so there is no run")
        return self.recorder.run

    def begin(
        self, network: nn.Module, optimizers: Sequence[Optimizer], config: Mapping[str, Any]
    ) -> Recorder | None:
        """Attach to a training that is about to start. A second one goes to `out-2`, and so on.

        Ranks write where rank 0 does; None for one that cannot.
        """
        out = self._out if self._out is not None else default_out()
        try:
            place, rank = follow_first(unused(out) if self._count else out)
        except NotJoined as error:
            warnings.warn(f"laptime: {error}", stacklevel=3)
            return None
        options = self._options | {"config": {**config, **self._options.get("config", {})}}
        recorder = Recorder(network, list(optimizers), out=place, rank=rank, **options)
        recorder.start()
        self.recorder = recorder
        self._count += 1
        recorder.open()
        return recorder

    def end(self, error: BaseException | None = None) -> None:
        """Close the run, if one is open. An error is what ended the training."""
        if self.active is not None:
            self.active.__exit__(type(error) if error is not None else None, error, None)


Drive = Callable[[bool, BaseException | None], None]


class Joined(Trainings):
    """A recording that somebody else starts and stops: `laptime run`, which is told who cuts its steps."""

    def __init__(self, recorder: Recorder, drive: Drive) -> None:
        self.recorder = recorder
        self._drive = drive

    def begin(
        self, network: nn.Module, optimizers: Sequence[Optimizer], config: Mapping[str, Any]
    ) -> Recorder | None:
        assert self.recorder is not None
        self._drive(True, None)
        return self.recorder

    def end(self, error: BaseException | None = None) -> None:
        self._drive(False, error)


def number(value: Any) -> Any:
    """The loss in what a step returned: a tensor of one element, or one under "loss"; None without."""
    if isinstance(value, Mapping):
        value = value.get("loss")
    single = getattr(value, "numel", None)
    return value if single is not None and single() == 1 else None
