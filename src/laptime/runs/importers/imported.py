"""What was collected, and how it becomes a run directory like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laptime.errors import RunError
from laptime.model import Layer, LayerTime, Stage, Step, summarize
from laptime.model.layers import OTHER_LAYER
from laptime.runs import schema
from laptime.runs.run import Run, load
from laptime.runs.writer import RunWriter

KERNEL_COLUMNS = ("step", "rank", "layer", "phase", "kind", "name", "stream", "start_s", "seconds")


@dataclass(slots=True, kw_only=True)
class Collected:
    """Steps, layer times and kernels of one source. Kernels are columns: a trace holds a million of them."""

    source: str  # kineto | tensorflow | log | csv
    steps: list[Step] = field(default_factory=list)
    layers: list[LayerTime] = field(default_factory=list)
    kernels: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in KERNEL_COLUMNS})
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

    def add_kernel(self, **row: Any) -> None:
        """One kernel, copy or operator."""
        for name in KERNEL_COLUMNS:
            self.kernels[name].append(row[name])


def write(found: Collected, out: Path, files: Sequence[Path]) -> Run:
    """The run directory at `out`. Its configuration says where it comes from."""
    config = {"collected": {"source": found.source, "files": [str(file) for file in files]}}
    writer = RunWriter.create(
        out,
        config=config,
        environment={"device": found.device},
        tell=lambda _: None,  # the error below tells it
    )
    if found.network:
        writer.network([*found.network.values()])
    # Rank by rank: readers take the rows of one rank to follow each other.
    writer.append(
        "steps", schema.steps.table(sorted(found.steps, key=lambda step: (step.rank, step.start_s)))
    )
    if found.layers:
        writer.append("layers", schema.layers.table(sorted(found.layers, key=lambda row: row.rank)))
    if found.kernels["step"]:
        writer.append("kernels", schema.from_columns("kernels", found.kernels))
    writer.close("finished", summary(found))
    if writer.problem:
        raise RunError(f"{writer.problem}; free some space and collect again")
    return load(out)


def summary(found: Collected) -> dict[str, Any]:
    """What `run.json` says of a collected run, in the words of a recorded one."""
    walls = [step.wall_s for step in found.steps if step.stage is Stage.TRAIN]
    whole = sum(step.wall_s for step in found.steps)
    compute = sum(row.seconds for row in found.layers)
    named = sum(row.seconds for row in found.layers if row.layer != OTHER_LAYER)
    return {
        "steps": {stage.value: sum(step.stage is stage for step in found.steps) for stage in Stage},
        "wall_s": whole,
        "step_s": summarize(walls),
        "unexplained_share": sum(step.unexplained_s for step in found.steps) / whole if whole else None,
        "named_share": named / compute if compute else None,
        "notes": found.notes,
    }
