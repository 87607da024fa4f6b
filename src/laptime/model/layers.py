"""A layer, the time it took in one phase or in all of them, and the kernels it ran."""

from __future__ import annotations

from dataclasses import dataclass

from laptime.model.accounts import How, Phase, Stage

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

    stage: Stage = Stage.TRAIN
    attempt: int = 0
    step: int
    rank: int = 0
    layer: str
    phase: Phase
    start_s: float
    seconds: float
    calls: int = 1
    how: How = How.MEASURED
    busy_s: float | None = None
    idle_s: float | None = None
    memory_bytes: int | None = None


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
        return {Phase.FORWARD: self.forward_s, Phase.BACKWARD: self.backward_s}.get(phase, self.update_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kernel, copy or operator of a kernel-traced step, charged to the layer that launched it."""

    stage: Stage = Stage.TRAIN
    attempt: int = 0
    step: int
    rank: int = 0
    layer: str
    phase: str  # a Phase, or the account that was open
    kind: str  # kernel | copy | memset | operator
    name: str
    stream: int
    start_s: float
    seconds: float
