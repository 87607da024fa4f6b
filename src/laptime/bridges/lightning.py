"""`Trainer(callbacks=[laptime.LightningCallback()])`: a Lightning training, recorded.

Lightning runs `training_step` inside the optimizer's closure and never calls the LightningModule itself. What
counts as forward are the modules that `training_step` calls: the recorder finds them in the module tree, so
layers keep their paths. The rest of `training_step` is loss or host time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from laptime.bridges.callbacks import Drive, Joined, RecordOptions, Trainings, number
from laptime.errors import MissingExtra
from laptime.model import Stage
from laptime.recorder.arguments import batch_size
from laptime.recorder.guard import RecordingPart, shielded
from laptime.recorder.recorder import Recorder
from laptime.recorder.torch_patches import Leave, Patches, watched
from laptime.runs import Run


def _package() -> Any:
    """Lightning under the name that the script has imported, or else under the name that is installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in names:
        if name in sys.modules:
            return sys.modules[name]
    for name in names:
        if find_spec(name.partition(".")[0]) is not None:
            return import_module(name)
    raise MissingExtra("lightning", "lightning")


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = _package().Callback


class LightningCallback(Callback):
    """Records every `fit` of a Lightning trainer; takes the options of `laptime.record`."""

    def __init__(self, out: str | Path | None = None, **options: Unpack[RecordOptions]) -> None:
        super().__init__()
        self._join(Trainings(out, options))

    def _join(self, trainings: Trainings) -> None:
        self._trainings = trainings
        self._patches = Patches()
        self._validated = False

    @property
    def run(self) -> Run:
        """The latest fit's run."""
        return self._trainings.run

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The device is known and the sanity check is over: attach."""
        self._end()
        self._validated = False
        config = {
            "trainer": "lightning",
            "module": type(pl_module).__name__,
            "precision": str(trainer.precision),
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
        }
        if self._trainings.begin(pl_module, trainer.optimizers, config) is not None:
            self._watch_loss(pl_module)

    def _watch_loss(self, pl_module: LightningModule) -> None:
        self._patches.replace(type(pl_module), "training_step", partial(watched, self._enter_step))
        self._patches.replace(type(pl_module), "log", partial(watched, self._enter_log))

    def _enter_step(self, *_: Any, **__: Any) -> Leave | None:
        """What `training_step` does after the loss is host time, though Lightning scales the loss later."""
        active = self._trainings.active
        return None if active is None else lambda _: active.marks.end_loss()

    def _enter_log(self, *_: Any, **__: Any) -> Leave | None:
        active = self._trainings.active
        return None if active is None else active.marks.enter_zero_grad()

    def _end(self, error: BaseException | None = None) -> None:
        self._patches.restore()
        self._trainings.end(error)

    @shielded(RecordingPart.RECORDING)
    def _lap(
        self, stage: Stage, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any
    ) -> None:
        recorder = self._trainings.active
        if recorder is None:
            return
        loss = number(outputs)
        if loss is not None:
            # Lightning has divided it by the batches that make one update.
            divided = stage is Stage.TRAIN and pl_module.automatic_optimization
            share = trainer.accumulate_grad_batches if divided else 1
            recorder.log(loss=loss * share if share > 1 else loss)
        recorder.lap(stage=stage, samples=batch_size(batch), epoch=trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A training batch is a step."""
        self._lap(Stage.TRAIN, trainer, pl_module, outputs, batch)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A validation batch is a step of its own stage."""
        self._lap(Stage.VALIDATION, trainer, pl_module, outputs, batch)

    @shielded(RecordingPart.RECORDING)
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """`validation_step` may call other parts of the module than `training_step` did."""
        recorder = self._trainings.active
        if recorder is not None and not self._validated:
            self._validated = True
            recorder.search()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach and close the run."""
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The fit failed or was interrupted: the steps so far are kept."""
        self._end(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Whatever happened, nothing stays attached."""
        self._end()


def follow(trainer: Trainer, recorder: Recorder, network: nn.Module, drive: Drive) -> Callable[[], None]:
    """Let a trainer that is running already cut the steps of a recording; returns the undo."""
    callback = LightningCallback.__new__(LightningCallback)
    callback._join(Joined(recorder, drive))
    callback._watch_loss(trainer.lightning_module)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks.insert(0, callback)

    def undo() -> None:
        callback._end()
        if callback in callbacks:
            callbacks.remove(callback)

    return undo
