"""Where the steps of a script end, told from what it does.

A step is one batch drawn from a DataLoader: it ends when the next is drawn, or, where batches are drawn ahead
of their use, when the next is used. Without a loader it ends where the network is called again after a
backward pass, or with several optimizers where they begin another round, and where training turns to
evaluation: forward passes without gradients. A trainer cuts its own steps.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from laptime.model import Stage
from laptime.recorder.arguments import batch_size
from laptime.recorder.guard import RecordingPart, attempt
from laptime.recorder.layer_division import LayerUnit
from laptime.recorder.recorder import Recorder
from laptime.recorder.timeline import HOST, LoopListener
from laptime.recorder.torch_patches import Patches, watched

MOST_AHEAD = 64  # batches that a loop may draw before it uses them
MOST_CALLS = 256  # of a network in one step, where no optimizer says what a step is
NO_UPDATE = 64  # backward passes without an update: the optimizers that there are are not used


@dataclass(slots=True, eq=False)
class _LoaderPass:
    """A pass over a loader."""

    number: int
    loader: int  # its id
    sizes: deque[int | None] = field(default_factory=lambda: deque(maxlen=MOST_AHEAD))


@dataclass(slots=True)
class _Step:
    """What the running step has done so far, beside what the recorder sees."""

    draws: int = 0
    ahead: int = 0  # batches among these that were drawn for steps to come
    drawn_ahead: bool = False  # the batch that is being drawn is such a one
    ahead_mark: int | None = None  # where the first of these was drawn
    calls: Counter[int] = field(default_factory=Counter)  # of networks and parts called by themselves
    updates: dict[int, None] = field(default_factory=dict)  # ids of optimizers, in the order of their steps
    evaluated: LayerUnit | None = None  # a network, or part of one, called without gradients


class StepEnds(LoopListener):
    """Cuts the steps of one script."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None  # from the first network on
        self.driven = False  # a trainer cuts its own steps
        self._optimizers = 0  # that the script has made
        self.updating: set[int] = set()  # ids of optimizers that make a step, of which a closure is part
        self._serial = count()  # of passes over loaders
        self._passes: WeakKeyDictionary[Any, _LoaderPass] = WeakKeyDictionary()  # by iterator
        self._trained: set[int] = set()  # the passes that training batches came from
        self._epoch = -1
        self._source: _LoaderPass | None = None  # where the step's batch was drawn from
        self._elsewhere: _LoaderPass | None = None  # the same, in another thread
        self._step = _Step()
        self._closing = 0  # the id of the optimizer that ends a round
        self._update_end = 0  # the mark after the latest update
        self._drawless = 0  # training steps since the latest draw that went without one
        self._updates_often = False  # several updates are made with each batch that is drawn
        self._backwards = 0  # since the latest update
        self._validated: LayerUnit | None = None  # the step before was an evaluation of it

    @property
    def _recording(self) -> Recorder:
        """The recording, for what only it calls."""
        assert self.recorder is not None
        return self.recorder

    def watch_loaders(self, patches: Patches) -> None:
        """From the start: the first batch is drawn before there is a network to record."""
        for owner, name, action in (
            (DataLoader, "__iter__", self._pass_begun),
            (_BaseDataLoaderIter, "__next__", self._drawn),
        ):
            leave = partial(partial, attempt, RecordingPart.RECORDING, action)
            patches.replace(owner, name, partial(watched, leave))

    def optimizer_made(self) -> None:
        """The script has made an optimizer; after steps with another one alone, another training begins."""
        if self._optimizers == 1 and not self._step.draws:
            self.before_network()
        self._optimizers += 1

    def move(self) -> None:
        """The recording goes on in another thread, which has drawn a batch already."""
        self._source, self._step = self._elsewhere, _Step(draws=self._elsewhere is not None)

    def end_last_step(self, *, finished: bool) -> None:
        """The script is over: a step that did its work counts."""
        if self.recorder is None or not self.recorder.active or self.driven:
            return
        evidence, timeline = self.recorder.evidence, self.recorder.timeline
        if evidence.update:
            # At the mark where the last phase ended: what follows the last step is no part of it. A trace
            # knows marks by their number, so a traced step ends where the script does.
            last = len(timeline.owners) - 1
            known = last > 0 and timeline.owner == HOST and timeline.on_mark is None
            self._lap(at=last if known else None)
        elif (evidence.forward and not evidence.graded) or (evidence.backward and finished):
            self._lap()

    # -- batches ---------------------------------------------------------------------------------------------

    def _pass_begun(self, loader: DataLoader[Any], iterator: Any) -> None:
        if iterator is not None:
            self._passes[iterator] = _LoaderPass(next(self._serial), id(loader))

    def _drawn(self, iterator: Any, batch: Any) -> None:
        """A loader gave a batch; None: its pass is over.

        A pass that ends before there is a network was no training: someone looked through the data.
        """
        source = self._passes.get(iterator)
        if batch is None:
            if self.recorder is None and source is self._source:
                self._source, self._step = None, _Step()
            return
        if source is not None:
            source.sizes.append(batch_size(batch))
        if self.recorder is not None and self.recorder.timeline.elsewhere():
            self._elsewhere = source
            return
        step = self._step
        # A batch that is looked at by itself before the pass (`next(iter(loader))`) is not the step's.
        again = source is not None and self._source is not None and source.loader == self._source.loader
        if not step.draws or (again and not step.drawn_ahead):
            self._source = source
        step.draws += 1
        step.ahead += step.drawn_ahead
        step.drawn_ahead = False

    def before_draw(self, iterator: Any) -> None:
        """A batch is about to be drawn: the step that used the one before is over, or will go on with it."""
        evidence = self._recording.evidence
        self.updating.clear()  # one that has raised never ends
        self._step.drawn_ahead = False
        if self._drawless and self._source is not None:
            self._updates_often = True  # and what follows is the next batch
        self._drawless = 0
        if self.driven or not (evidence.forward or evidence.update):
            return
        if evidence.graded and not (self._step.draws or self._recording.hooks.trained):
            self._recording.begin_anew()  # a network was tried on a made-up batch before its training
            self._step = _Step()
        elif evidence.graded and evidence.training and not (evidence.backward or evidence.update):
            self._step.drawn_ahead = True  # its backward pass is still to come
            if self._step.ahead_mark is None:
                self._step.ahead_mark = len(self._recording.timeline.owners)
        else:
            self._lap()

    # -- networks --------------------------------------------------------------------------------------------

    def before_network(self) -> None:
        """A network joins: after an update, in rounds that went without it, another training has begun."""
        recorder = self.recorder
        if recorder is not None and not self.driven and recorder.step_number and recorder.evidence.update:
            self._lap()

    def before_forward(self, unit: LayerUnit) -> None:
        """A network is called, or a part of it by itself: the next batch is used, or evaluation begins."""
        if self.driven or self._recording.timeline.elsewhere():
            return
        mark = self._step.ahead_mark
        if mark is not None and self._step.calls[unit.index] and not self._recording.evidence.backward:
            self._lap(at=mark)  # nobody asked for gradients: the batch was not drawn ahead
        elif self._begins(unit):
            self._lap()
        self._step.calls[unit.index] += 1
        if not torch.is_grad_enabled() and self._step.evaluated is None:
            self._step.evaluated = unit

    def _begins(self, unit: LayerUnit) -> bool:
        """Whether this call begins another step."""
        evidence, step = self._recording.evidence, self._step
        graded, calls = torch.is_grad_enabled(), step.calls[unit.index]
        if not graded and evidence.update and not self._in_round():
            return True  # evaluation after training
        if step.evaluated is not None and not step.draws and not evidence.graded:
            # A teacher is called once before its pupil; what was evaluated before was evaluated again.
            return calls > 0 or (graded and step.evaluated is self._validated)
        if not calls or self.updating:
            return False
        if step.ahead and evidence.backward and not self._in_round():
            return True
        if step.draws or self._updates_often or (self._updates_come() and self._optimizers > 1):
            return False
        return evidence.backward or (not self._updates_come() and calls >= MOST_CALLS)

    def before_backward(self) -> None:
        """A backward pass of something that is not evidence forward; without optimizers each is a step."""
        evidence = self._recording.evidence
        self._backwards += 1
        alone = not (evidence.forward or evidence.update or self._step.draws or self._updates_come())
        if alone and evidence.backward and not self.driven:
            self._lap()

    # -- updates ---------------------------------------------------------------------------------------------

    def _updates_come(self) -> bool:
        return self._optimizers > 0 and self._backwards < NO_UPDATE

    def _in_round(self) -> bool:
        """Whether some optimizers have stepped, and one that ends the round has not."""
        updates = self._step.updates
        return self._closing != 0 and bool(updates) and self._closing not in updates

    def before_update(self, optimizer: Optimizer) -> None:
        """An optimizer that steps again is in another round: the one before ended with its last update."""
        if not self.driven and not self._updates_often and id(optimizer) in self._step.updates:
            self._closing = list(self._step.updates)[-1]
            self._lap(at=self._update_end)

    def after_update(self, optimizer: Optimizer) -> None:
        """Without a loader a round ends with the last of its optimizers."""
        self._backwards = 0
        if self.driven:
            return
        self._step.updates[id(optimizer)] = None
        self._update_end = len(self._recording.timeline.owners) - 1
        if id(optimizer) == self._closing and not self._step.draws:
            self._lap()

    # -- the end of a step -----------------------------------------------------------------------------------

    def _lap(self, at: int | None = None) -> None:
        step, source = self._step, self._source
        # Drawn in this step, or ahead of it.
        samples = source.sizes.popleft() if source is not None and source.sizes else None
        trains = self._recording.evidence.stage is Stage.TRAIN
        if trains and step.draws and source is not None and source.number not in self._trained:
            self._trained.add(source.number)
            self._epoch += 1
        epoch = max(0, self._epoch)
        if at is None:
            self._recording.lap(samples=samples, epoch=epoch)
        else:
            self._recording.lap_at(at, samples=samples, epoch=epoch)
        self._validated = None if trains else step.evaluated
        self._drawless += trains and not step.draws
        self._step = _Step(draws=step.ahead)
