"""`Trainer(callbacks=[laptime.LightningCallback()])`: a Lightning training, recorded.

Lightning calls `training_step` inside the optimizer's closure, and never the LightningModule itself: what counts
as forward are the modules that `training_step` calls. The recorder finds them in the module tree, so layers keep
their paths; the rest of `training_step` is loss or host time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from laptime.errors import MissingExtra
from laptime.measure.callbacks import RecordOptions, Trainings, number
from laptime.measure.recorder import batch_size
from laptime.record import Stage
from laptime.store import Run

if TYPE_CHECKING or ("pytorch_lightning" not in sys.modules or "lightning.pytorch" in sys.modules):
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError:
        try:
            from pytorch_lightning import Callback, LightningModule, Trainer
        except ImportError:
            raise MissingExtra("lightning", "lightning") from None
else:  # the script's own choice, where both names are installed
    from pytorch_lightning import Callback, LightningModule, Trainer


class LightningCallback(Callback):
    """Records every `fit` of a Lightning trainer; takes the options of `laptime.record`."""

    def __init__(self, out: str | Path | None = None, **options: Unpack[RecordOptions]) -> None:
        super().__init__()
        self._trainings = Trainings(out, options)
        self._validated = False

    @property
    def run(self) -> Run:
        """The latest fit's run."""
        return self._trainings.run

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The device is known and the sanity check is over: attach."""
        self._trainings.end()
        self._validated = False
        if trainer.is_global_zero:
            config = {
                "trainer": "lightning",
                "module": type(pl_module).__name__,
                "precision": str(trainer.precision),
                "accumulate_grad_batches": trainer.accumulate_grad_batches,
            }
            self._trainings.begin(pl_module, trainer.optimizers, config)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A training batch is a step."""
        recorder = self._trainings.active
        if recorder is None:
            return
        loss = number(outputs)
        if loss is not None:
            # Lightning has divided it by the batches that make one update.
            share = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            recorder.log(loss=loss * share if share > 1 else loss)
        recorder.lap(stage=Stage.TRAIN, samples=batch_size(batch), epoch=trainer.current_epoch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """`validation_step` may call other parts of the module than `training_step` did."""
        recorder = self._trainings.active
        if recorder is not None and not self._validated:
            self._validated = True
            recorder.search()

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
        recorder = self._trainings.active
        if recorder is None:
            return
        loss = number(outputs)
        if loss is not None:
            recorder.log(loss=loss)
        recorder.lap(stage=Stage.VALIDATION, samples=batch_size(batch), epoch=trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach and close the run."""
        self._trainings.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The fit failed or was interrupted: the steps so far are kept."""
        self._trainings.end(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Whatever happened, nothing stays attached."""
        self._trainings.end()
