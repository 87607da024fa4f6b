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
from laptime.recorder.module_calls import after
from laptime.recorder.recorder import Recorder
from laptime.recorder.torch_patches import Patches
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
        _watcher.add(self)

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

    def begin(self, trainer: transformers.Trainer) -> None:
        """Called when `train()` does."""
        self._trainer = trainer

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
        network = self._called(kwargs["model"])
        config = {
            "trainer": "transformers",
            "network": type(kwargs["model"]).__name__,
            "per_device_train_batch_size": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
        }
        if self._trainings.begin(network, [unwrapped(kwargs["optimizer"])], config) is not None:
            self._unhook = after(network, self._take)

    def _called(self, model: nn.Module) -> nn.Module:
        """The module that the trainer calls: hooks inside a compiled one never fire."""
        wrapped = getattr(self._trainer, "model_wrapped", model)
        return wrapped if is_compiled(wrapped) else model

    @shielded(RecordingPart.RECORDING)
    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The network was called: the batch's size and loss, still on the device."""
        if self._samples is not None:
            return  # not the step's first call
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
    unhook = after(network, callback._take)
    trainer.add_callback(callback)

    def undo() -> None:
        trainer.remove_callback(callback)
        unhook()
        callback.end()

    return undo


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The torch optimizer inside accelerate's."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer  # type: ignore[attr-defined]
    return optimizer


class _Watcher:
    """Tells callbacks how `Trainer.train` ends, as long as there is one."""

    def __init__(self) -> None:
        self._alive = 0
        self._patches = Patches()

    def add(self, callback: TrainerCallback) -> None:
        if not self._alive:
            self._patches.replace(transformers.Trainer, "train", _watched)
        self._alive += 1
        weakref.finalize(callback, self._forget).atexit = False

    def _forget(self) -> None:
        self._alive -= 1
        if not self._alive:
            self._patches.restore()


_watcher = _Watcher()


def _watched(train: Any) -> Any:
    @functools.wraps(train)
    def watched(trainer: transformers.Trainer, *args: Any, **kwargs: Any) -> Any:
        mine = [c for c in trainer.callback_handler.callbacks if isinstance(c, TrainerCallback)]
        for callback in mine:
            callback.begin(trainer)
        try:
            result = train(trainer, *args, **kwargs)
        except BaseException as error:
            for callback in mine:
                callback.end(error)
            raise
        for callback in mine:
            callback.end()
        return result

    return watched
