"""The step that is running: what has happened in it so far, and what it carries."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from laptime.model import Stage


@dataclass(slots=True)
class StepEvidence:
    """What happened in a step; decides its stage and its labels."""

    forward: bool = False
    backward: bool = False
    update: bool = False
    graded: bool = False
    training: bool = False

    def saw_forward(self, *, graded: bool, training: bool) -> None:
        """A forward pass: with gradients enabled or not, of a network in training mode or not."""
        self.forward = True
        self.graded = self.graded or graded
        self.training = self.training or training

    def saw_update(self) -> None:
        """An optimizer made a step."""
        self.update = True

    @property
    def works(self) -> bool:
        """Whether the step has done anything but wait."""
        return self.forward or self.backward or self.update

    @property
    def stage(self) -> Stage:
        """What the step was for."""
        trains = self.backward or self.update or (self.graded and self.training) or not self.forward
        return Stage.TRAIN if trains else Stage.VALIDATION


@dataclass(slots=True, eq=False)
class RunningStep:
    """One object for a whole recording, since hooks hold it; `next_step` makes it that of the next step."""

    evidence: StepEvidence = field(default_factory=StepEvidence)
    began: float = field(default_factory=time.perf_counter)
    forward_depth: int = 0  # forward passes under way
    backward_depth: int = 0
    samples: int | None = None  # in the batch that was drawn last
    marked: bool = False  # it carries layer marks,
    complete: bool = True  # and does to its end
    perturbed: bool = False  # a profiler session is open
    walked_s: float = 0.0  # what walks over autograd graphs have taken of it

    def carry(self, *, layers: bool, perturbed: bool) -> None:
        """What it carries from its start: layer marks, a profiler session."""
        self.marked, self.perturbed = layers, perturbed

    def lose_layers(self) -> None:
        """Its layer marks end before it does, so that its layers cannot be told."""
        self.complete = False

    def drew(self, samples: int | None) -> None:
        """A batch was drawn."""
        self.samples = samples

    def walked(self, seconds: float) -> None:
        """A graph was walked over, looking for the boundaries of layers."""
        self.walked_s += seconds

    def enter_forward(self) -> None:
        """A forward pass begins, or one inside another."""
        self.forward_depth += 1

    def leave_forward(self) -> None:
        """A forward pass ends."""
        self.forward_depth = max(0, self.forward_depth - 1)

    def enter_backward(self) -> None:
        """A backward pass begins, or one inside another."""
        self.evidence.backward = True
        self.backward_depth += 1

    def leave_backward(self) -> None:
        """A backward pass ends."""
        self.backward_depth = max(0, self.backward_depth - 1)

    def starts(self) -> float:
        """The step starts here; returns the host seconds of the previous step."""
        before, self.began = self.began, time.perf_counter()
        return self.began - before

    def restart(self) -> None:
        """Begin here, with nothing in it."""
        self.evidence = StepEvidence()
        self.forward_depth = 0
        self.starts()

    def next_step(self) -> StepEvidence:
        """The next step begins; returns what happened in this one."""
        evidence, self.evidence = self.evidence, StepEvidence()
        self.walked_s = 0.0
        self.forward_depth = self.backward_depth = 0
        return evidence

    def close(self) -> bool:
        """Close the step; returns whether its layer times are complete. The next one keeps `marked`."""
        self.marked = self.marked and self.complete
        self.complete, self.samples = True, None
        return self.marked
