"""A layer, the time it took in one phase or in all of them, and the kernels it ran."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from laptime.model.accounts import How, Phase, Stage
from laptime.model.step import Int32

# Rows of the layer table that are no module. Parentheses cannot occur in a Python attribute name,
# so they cannot collide with a module path.
LOSS_LAYER = "(loss)"
OTHER_LAYER = "(other)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A unit that time is charged to.

    `parameters` counts what the layer owns: a tied parameter belongs to its first user.
    """

    name: str
    path: str
    kind: str
    parameters: int = 0
    parameter_bytes: int = 0
    trainable: bool = True
    compiled: bool = False
    flops: float | None = None
    bytes: float | None = None
    activation_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Seconds of one layer in one phase of one step."""

    stage: Annotated[Stage, "`train` or `validation`"] = Stage.TRAIN
    attempt: Annotated[Int32, "0, and one more after each resume"] = 0
    step: Annotated[int, "number of the step, from 0"]
    rank: Annotated[Int32, "process of a distributed training"] = 0
    layer: Annotated[str, "name of the layer; `(loss)`, or `(other)` for what no layer owns"]
    phase: Annotated[Phase, "`forward`, `backward` or `update`"]
    start_s: Annotated[float, "since the run began"]
    seconds: Annotated[float, "how long"]
    calls: Annotated[Int32, "of the layer in this phase of this step"] = 1
    how: Annotated[How, "`measured`, or `allocated`: the optimizer's time, split by parameter bytes"] = (
        How.MEASURED
    )
    busy_s: Annotated[float | None, "of it, in which kernels ran; kernel-traced steps only"] = None
    idle_s: Annotated[
        float | None, "of it, in which the device had nothing to do; kernel-traced steps only"
    ] = None
    memory_bytes: Annotated[int | None, "most memory allocated while it ran; kernel-traced steps only"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """Seconds of a layer in each phase of a step, measured or predicted."""

    layer: str
    forward_s: float
    backward_s: float
    update_s: float

    @property
    def total_s(self) -> float:
        """Of the whole step."""
        return self.forward_s + self.backward_s + self.update_s

    def seconds(self, phase: Phase) -> float:
        """Of one phase."""
        value: float = getattr(self, f"{phase.value}_s")
        return value


def layer_seconds(layer: str, seconds: Mapping[Phase, float]) -> LayerSeconds:
    """A layer from its seconds by phase."""
    return LayerSeconds(layer=layer, **{f"{phase.value}_s": seconds[phase] for phase in Phase})


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kernel, copy or operator of a kernel-traced step, charged to the layer that launched it."""

    stage: Annotated[Stage, "`train` or `validation`"] = Stage.TRAIN
    attempt: Annotated[Int32, "0, and one more after each resume"] = 0
    step: Annotated[int, "number of the step, from 0"]
    rank: Annotated[Int32, "process of a distributed training"] = 0
    layer: Annotated[str, "name of the layer; `(loss)`, or `(other)` for what no layer owns"]
    phase: Annotated[str, "`forward`, `backward`, `update`, or the account that was open"]
    kind: Annotated[str, "`kernel`, `copy`, `memset`, or `operator` on a CPU"]
    name: Annotated[str, "of the kernel"]
    stream: Annotated[int, "CUDA stream, a number that can be an address; 0 on a CPU"]
    start_s: Annotated[float, "since the run began"]
    seconds: Annotated[float, "how long"]


Interval = tuple[float, float]  # start and end


def union(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """The intervals without their overlaps, in order."""
    begin = finish = -math.inf
    for start, end in sorted(intervals):
        if start > finish:
            if finish > begin:
                yield begin, finish
            begin, finish = start, end
        finish = max(finish, end)
    if finish > begin:
        yield begin, finish
