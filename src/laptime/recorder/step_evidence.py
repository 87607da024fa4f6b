"""What a step has shown so far, and what that says of its purpose."""

from __future__ import annotations

from dataclasses import dataclass

from laptime.model import Stage


@dataclass(slots=True)
class Seen:
    """What happened in the step that is running; decides its stage and its labels."""

    forward: bool = False
    backward: bool = False
    update: bool = False
    graded: bool = False
    training: bool = False

    @property
    def stage(self) -> Stage:
        """What the step was for."""
        trains = self.backward or self.update or (self.graded and self.training) or not self.forward
        return Stage.TRAIN if trains else Stage.VALIDATION
