"""What was collected, and how it becomes a run directory like any other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laptime.errors import RunError
from laptime.model import COMPUTE, Account, Layer, LayerTime, Phase, Stage, Step, summarize
from laptime.model.layers import OTHER_LAYER
from laptime.runs import schema
from laptime.runs.importers.trace_events import EVALUATE, Event, Owner
from laptime.runs.run import Run, load
from laptime.runs.writer import RunWriter

_S = 1e-6  # a trace counts microseconds
_KERNEL_COLUMNS = ("step", "rank", "layer", "phase", "kind", "name", "stream", "start_s", "seconds")
_PHASES = {
    Account.FORWARD: Phase.FORWARD,
    Account.LOSS: Phase.FORWARD,
    Account.BACKWARD: Phase.BACKWARD,
    Account.UPDATE: Phase.UPDATE,
}


@dataclass(slots=True)
class Share:
    """What one owner had of a step, in microseconds."""

    begin: float
    busy: float = 0.0
    idle: float = 0.0


@dataclass(slots=True, kw_only=True)
class Collected:
    """Steps, layer times and kernels of one source. Kernels are columns: a trace holds a million of them."""

    source: str  # kineto | tensorflow | log | csv
    steps: list[Step] = field(default_factory=list)
    layers: list[LayerTime] = field(default_factory=list)
    kernels: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _KERNEL_COLUMNS})
    network: dict[str, Layer] = field(default_factory=dict)  # by name, in order
    device: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep a remark, once."""
        if text not in self.notes:
            self.notes.append(text)

    def know(self, name: str, kind: str) -> None:
        """Put a layer at the end of the network, unless it is there."""
        self.network.setdefault(name, Layer(name=name, path=name, kind=kind))

    def add_step(
        self,
        number: int,
        rank: int,
        device: str,
        extent: tuple[float, float],
        shares: Mapping[Owner, Share],
        calls: Mapping[Owner, int],
    ) -> None:
        """A traced step from what each owner had of it; waiting inside computation is idle time."""
        begin, end = extent
        seconds: dict[Account, float] = defaultdict(float, {Account.IDLE: 0.0})
        for owner, share in shares.items():
            length = (share.busy + share.idle) * _S
            if owner.account in COMPUTE:
                seconds[owner.account] += share.busy * _S
                seconds[Account.IDLE] += share.idle * _S
            elif owner.account is not Account.UNEXPLAINED:
                seconds[owner.account] += length
            if owner.account in _PHASES:
                self.layers.append(
                    LayerTime(
                        step=number,
                        rank=rank,
                        layer=owner.layer or OTHER_LAYER,
                        phase=_PHASES[owner.account],
                        start_s=share.begin * _S,
                        seconds=length,
                        calls=calls.get(owner, 1),
                        busy_s=share.busy * _S,
                        idle_s=share.idle * _S,
                    )
                )
        self.steps.append(
            Step.closed(
                step=number,
                optimizer_step=number,
                rank=rank,
                device=device,
                start_s=begin * _S,
                wall_s=(end - begin) * _S,
                seconds=seconds,
                instrumented=True,
            )
        )

    def add_kernel(self, number: int, rank: int, owner: Owner, event: Event, kind: str) -> None:
        """One kernel, copy or operator of a step."""
        name = event.name.removeprefix(EVALUATE + ": ")
        of = (number, rank, owner.layer or OTHER_LAYER, owner.account.value, kind, name, event.stream)
        row = (*of, event.start * _S, event.length * _S)
        for column, value in zip(self.kernels.values(), row, strict=True):
            column.append(value)


def write(collected: Collected, out: Path, files: Sequence[Path]) -> Run:
    """The run directory at `out`. Its configuration says where it comes from."""
    config = {"collected": {"source": collected.source, "files": [str(file) for file in files]}}
    writer = RunWriter.create(
        out,
        config=config,
        environment={"device": collected.device},
        tell=lambda _: None,  # the error below tells it
    )
    if collected.network:
        writer.network([*collected.network.values()])
    # Rank by rank: readers take the rows of one rank to follow each other.
    steps = sorted(collected.steps, key=lambda step: (step.rank, step.start_s))
    writer.append("steps", schema.steps.table(steps))
    if collected.layers:
        writer.append("layers", schema.layers.table(sorted(collected.layers, key=lambda row: row.rank)))
    if collected.kernels["step"]:
        writer.append("kernels", schema.from_columns("kernels", collected.kernels))
    writer.close("finished", _summary(collected))
    if writer.problem:
        raise RunError(f"{writer.problem}; free some space and collect again")
    return load(out)


def _summary(collected: Collected) -> dict[str, Any]:
    """What `run.json` says of a collected run, in the words of a recorded one."""
    steps, layers = collected.steps, collected.layers
    whole = sum(step.wall_s for step in steps)
    compute = sum(row.seconds for row in layers)
    named = sum(row.seconds for row in layers if row.layer != OTHER_LAYER)
    return {
        "steps": {stage.value: sum(step.stage is stage for step in steps) for stage in Stage},
        "wall_s": whole,
        "step_s": summarize([step.wall_s for step in steps if step.stage is Stage.TRAIN]),
        "unexplained_share": sum(step.unexplained_s for step in steps) / whole if whole else None,
        "named_share": named / compute if compute else None,
        "notes": collected.notes,
    }
