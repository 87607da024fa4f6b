"""Where the steps of a script end, told from what it does.

A step is one batch drawn from a DataLoader: it ends when the next is drawn. Without a loader it ends where
the optimizers begin another round, and where training turns to evaluation. A trainer cuts its own steps.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from laptime.measure.arguments import batch_size
from laptime.measure.networks import Network
from laptime.measure.patches import Patches
from laptime.measure.recorder import Recorder
from laptime.record import Stage

MOST_AHEAD = 64  # batches that a loop may draw before it uses them


class Cuts:
    """Cuts the steps of one script."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.driven = False  # a trainer cuts its own steps
        self._patches = Patches()
        self._serial = count()  # of passes over loaders
        self._trained: set[int] = set()  # the passes that training batches came from
        self._epoch = -1
        self._draws = 0
        self._source: Any = None  # what the step's first batch was drawn from
        self._stepped: dict[int, Optimizer] = {}
        self._closing: Optimizer | None = None  # the one that ends a round
        self._update_end = 0  # the mark after the latest update
        self._evaluated: Network | None = None  # called for evaluation in this step

    def watch_loaders(self) -> None:
        """From the start: the first batch is drawn before there is a network to record."""
        self._patches.replace(DataLoader, "__iter__", self._counting_passes)
        self._patches.replace(_BaseDataLoaderIter, "__next__", self._counting_draws)

    def follow(self, recorder: Recorder) -> None:
        """Cut the steps of this recording."""
        self.recorder = recorder
        recorder.watch.before_draw = self.before_draw
        recorder.instruments.on_forward = self.before_forward
        recorder.instruments.updates.before = self.before_update

    def end(self, *, finished: bool) -> None:
        """The script is over: a step that did its work counts."""
        if self.recorder is not None and not self.driven:
            seen = self.recorder.seen
            if seen.update or (seen.forward and not seen.graded) or (seen.backward and finished):
                self._lap()

    def leave_loaders(self) -> None:
        """Put the loaders back, after the recording has."""
        self._patches.restore()

    def _counting_passes(self, original: Any) -> Any:
        def iterate(loader: DataLoader[Any]) -> Any:
            iterator = original(loader)
            iterator._laptime_pass = next(self._serial)
            iterator._laptime_sizes = deque(maxlen=MOST_AHEAD)
            return iterator

        return iterate

    def _counting_draws(self, original: Any) -> Any:
        def draw(iterator: Any) -> Any:
            batch = original(iterator)
            if self.recorder is not None and self.recorder.watch.elsewhere():
                return batch
            if hasattr(iterator, "_laptime_sizes"):
                iterator._laptime_sizes.append(batch_size(batch))
            if self.recorder is None or not self._draws:
                self._source = iterator
            self._draws += 1
            return batch

        return draw

    def before_draw(self, iterator: Any) -> None:
        """A batch is about to be drawn: the step that used the one before is over."""
        assert self.recorder is not None
        if not self.driven and (self.recorder.seen.forward or self.recorder.seen.update):
            self._lap()

    def before_network(self) -> None:
        """A network joins: after an update, in rounds that went without it, another training has begun."""
        recorder = self.recorder
        if recorder is not None and not self.driven and recorder.step_number and recorder.seen.update:
            self._lap()

    def before_forward(self, network: Network) -> None:
        """Without a loader every call for evaluation is a step, apart from the training before and after."""
        assert self.recorder is not None
        if self.driven or self.recorder.watch.elsewhere():
            return
        seen = self.recorder.seen
        evaluates = not network.root.training and not torch.is_grad_enabled()
        after_training = evaluates and seen.update
        after_evaluation = self._evaluated is network and not self._draws and not seen.graded
        if after_training or after_evaluation:
            self._lap()
        if evaluates:
            self._evaluated = network

    def before_update(self, optimizer: Optimizer) -> None:
        """An optimizer that steps again is in another round: the one before ended with its last update."""
        if not self.driven and id(optimizer) in self._stepped:
            self._closing = list(self._stepped.values())[-1]
            self._lap(at=self._update_end)

    def after_update(self, optimizer: Optimizer) -> None:
        """Without a loader a round ends with the last of its optimizers."""
        assert self.recorder is not None
        if self.driven:
            return
        self._stepped[id(optimizer)] = optimizer
        self._update_end = len(self.recorder.timeline.owners) - 1
        if optimizer is self._closing and not self._draws:
            self._lap()

    def _lap(self, at: int | None = None) -> None:
        assert self.recorder is not None
        sizes = getattr(self._source, "_laptime_sizes", None)
        samples = sizes.popleft() if sizes else None  # drawn in this step, or ahead of it
        number = getattr(self._source, "_laptime_pass", None)
        trains = self.recorder.seen.stage is Stage.TRAIN
        if trains and self._draws and number is not None and number not in self._trained:
            self._trained.add(number)
            self._epoch += 1
        epoch = max(0, self._epoch)
        if at is None:
            self.recorder.lap(samples=samples, epoch=epoch)
        else:
            self.recorder.lap_at(at, samples=samples, epoch=epoch)
        self._draws = 0
        self._stepped.clear()
        self._evaluated = None
