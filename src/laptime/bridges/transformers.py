"""`Trainer(…, callbacks=[laptime.TrainerCallback()])`: a Hugging Face training, recorded.

The Trainer tells its callbacks that a training begins and ends, but not that it failed, and it draws batches
ahead of their use. So `Trainer.train` is watched for how it ends, and the size and the loss of a batch are
taken from the network's call.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

from torch import nn
from torch.optim import Optimizer

from laptime.bridges.callbacks import Drive, Joined, RecordOptions, Trainings, number
from laptime.errors import MissingExtra, RecordingError
from laptime.model import Stage
from laptime.recorder.arguments import batch_size
from laptime.recorder.guard import RecordingPart, shielded
from laptime.recorder.layer_division import is_compiled
from laptime.recorder.recorder import Recorder
from laptime.recorder.torch_patches import Patches, watch
from laptime.runs import Run

if find_spec("transformers") is None or find_spec("accelerate") is None:
    raise MissingExtra("transformers", "transformers")

import transformers

Arguments = transformers.TrainingArguments
State = transformers.TrainerState
Control = transformers.TrainerControl


class TrainerCallback(transformers.TrainerCallback):
    """Records every `train()` of a transformers trainer; takes the options of `laptime.record`."""

    def __init__(self, out: str | Path | None = None, **options: Unpack[RecordOptions]) -> None:
        self._join(Trainings(out, options))
        _watch_train(self)

    def _join(self, trainings: Trainings) -> None:
        self._trainings = trainings
        self._unhook: Callable[[], None] | None = None
        self._trainer: transformers.Trainer | None = None  # while it trains
        self._samples: int | None = None
        self._loss: Any = None
        self._shared = False
        self._epoch = 0

    @property
    def run(self) -> Run:
        """The latest training's run."""
        return self._trainings.run

    def end(self, error: BaseException | None = None) -> None:
        """Close the run and leave nothing attached. Called however `train()` ends."""
        if self._unhook is not None:
            self._unhook()
        self._unhook = self._trainer = None
        self._trainings.end(error)

    # -- what the trainer tells ------------------------------------------------------------------------------

    def on_train_begin(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """Network and optimizer are ready: attach."""
        if self._trainings.active is not None:  # a smaller batch is tried after running out of memory
            self._trainings.end(RecordingError("the trainer started again"))
        if self._unhook is not None:
            self._unhook()
        # Hooks inside a compiled module never fire: the one that the trainer calls counts.
        wrapped = getattr(self._trainer, "model_wrapped", kwargs["model"])
        network = wrapped if is_compiled(wrapped) else kwargs["model"]
        optimizer = kwargs["optimizer"]
        while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = optimizer.optimizer  # the torch optimizer inside accelerate's
        config = {
            "trainer": "transformers",
            "network": type(kwargs["model"]).__name__,
            "per_device_train_batch_size": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
        }
        if self._trainings.begin(network, [optimizer], config) is not None:
            self._unhook = watch(network, leave=self._take)

    @shielded(RecordingPart.RECORDING)
    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The network was called: the batch's size and loss, still on the device."""
        if self._samples is not None or output is None:
            return  # not the step's first call, or one that raised
        self._samples = batch_size((*args, *kwargs.values()))
        loss = number(output)
        # With this argument it is the batch's share in its update's loss, whose items are counted together.
        self._shared = kwargs.get("num_items_in_batch") is not None
        if loss is not None:
            loss = loss.detach()
            self._loss = loss if self._loss is None else self._loss + loss

    @shielded(RecordingPart.RECORDING)
    def on_epoch_begin(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """Epochs count from 0, also after a resume."""
        self._epoch = int((state.epoch or 0.0) + 1e-6)

    def on_substep_end(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """A batch whose gradients are only accumulated."""
        self._lap(Stage.TRAIN, updates=False)

    def on_step_end(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """A batch that ends in an update."""
        self._lap(Stage.TRAIN)

    def on_prediction_step(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """A batch of an evaluation."""
        self._lap(Stage.VALIDATION)

    def on_train_end(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """Detach and close the run."""
        self.end()

    @shielded(RecordingPart.RECORDING)
    def _lap(self, stage: Stage, *, updates: bool = True) -> None:
        recorder = self._trainings.active
        if recorder is None:
            return
        if self._loss is not None and (updates or not self._shared):
            recorder.log(loss=self._loss)
            self._loss = None
        recorder.lap(stage=stage, samples=self._samples, epoch=self._epoch)
        self._samples = None


def follow(
    trainer: transformers.Trainer, recorder: Recorder, network: nn.Module, drive: Drive
) -> Callable[[], None]:
    """Let a trainer that is running already cut the steps of a recording; returns the undo."""
    callback = TrainerCallback.__new__(TrainerCallback)
    callback._join(Joined(recorder, drive))
    callback._epoch = int(trainer.state.epoch or 0.0)
    unhook = watch(network, leave=callback._take)
    trainer.add_callback(callback)

    def undo() -> None:
        trainer.remove_callback(callback)
        unhook()
        callback.end()

    return undo


_callbacks = 0  # as long as there is one, they are told how `Trainer.train` ends
_patches = Patches()


def _watch_train(callback: TrainerCallback) -> None:
    global _callbacks
    if not _callbacks:
        _patches.replace(transformers.Trainer, "train", _watched)
    _callbacks += 1
    weakref.finalize(callback, _forget_callback).atexit = False


def _forget_callback() -> None:
    global _callbacks
    _callbacks -= 1
    if not _callbacks:
        _patches.restore()


def _watched(train: Any) -> Any:
    @functools.wraps(train)
    def watched(trainer: transformers.Trainer, *args: Any, **kwargs: Any) -> Any:
        mine = [c for c in trainer.callback_handler.callbacks if isinstance(c, TrainerCallback)]
        for callback in mine:
            callback._trainer = trainer
        ending: BaseException | None = None
        try:
            return train(trainer, *args, **kwargs)
        except BaseException as error:
            ending = error
            raise
        finally:
            for callback in mine:
                callback.end(ending)

    return watched
