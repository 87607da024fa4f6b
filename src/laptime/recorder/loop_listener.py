"""Events of a recorded loop, for code that cuts its steps from outside."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from laptime.recorder.layer_division import LayerUnit


class LoopListener:
    """Told what happens in a recorded loop. This one does nothing; that of `laptime run` cuts steps."""

    def before_draw(self, iterator: Any) -> None:
        """A batch is about to be drawn."""

    def before_forward(self, unit: LayerUnit) -> None:
        """A network is called, or a part of it by itself."""

    def before_backward(self) -> None:
        """A backward pass begins that accumulates gradients."""

    def before_update(self, optimizer: Optimizer) -> None:
        """A known optimizer begins a step."""

    def after_update(self, optimizer: Optimizer) -> None:
        """A known optimizer has ended a step."""

    def unknown_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer steps that the recording does not know."""

    def other_thread(self) -> bool:
        """A network is called in another thread than the recorded one; whether to go on there."""
        return False

    def give_way(self) -> None:
        """Another recording is about to begin in this process."""
