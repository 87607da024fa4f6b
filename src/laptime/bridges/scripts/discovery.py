"""Finding the networks and optimizers of a script as it uses them.

A network is the outermost module with parameters that the script calls, however late; inside of networks
nothing is looked for, so the search costs nothing there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from laptime.bridges.ranks import Seat, Seats
from laptime.bridges.scripts.callers import Caller, caller_of, class_name, networks_of
from laptime.bridges.scripts.step_ends import StepEnds
from laptime.errors import AlreadyRecording, LaptimeError, ScriptError
from laptime.files.text import first_line
from laptime.recorder.collectives import several
from laptime.recorder.guard import RecordingPart, attempt, warn
from laptime.recorder.layer_division import LayerUnit, is_compiled
from laptime.recorder.loop_listener import LoopListener
from laptime.recorder.module_calls import on_stranger, undo_all
from laptime.recorder.optimizer_steps import listen
from laptime.recorder.recorder import Recorder
from laptime.recorder.torch_patches import Patches
from laptime.runs import discard
from laptime.runs.directory import RESERVE_FILE

OURS = {"run.json", "network.json", RESERVE_FILE, "csv", "steps", "layers", "kernels"}
RECORDS_ITSELF = "the script records itself with laptime; that recording is kept"
MOST_LOOKS = 8  # each looks at every object of the process
MOST_NETWORKS = 32  # a sweep makes one after the other; beyond this many they are host time


class ScriptRecorder(LoopListener):
    """Follows a script from its first network call to its end, and has its steps cut (`StepEnds`)."""

    def __init__(
        self,
        out: Path,
        *,
        seats: Seats | None = None,
        on_fork: Callable[[ScriptRecorder], bool] = lambda _: False,
        refused: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        self.recorder: Recorder | None = None
        self.failure: LaptimeError | None = None  # why nothing can be recorded
        self._out = out
        self._options = options
        self._seats = seats  # of a run that other processes write to as well
        self._seat: Seat | None = None
        self._on_fork = on_fork  # a forked child is about to train
        self._refused = refused or _warn_of  # told why there is no recording
        self._ended = False
        self._unlisten: Callable[[], None] = lambda: None
        self._made = Patches()  # on what tells that optimizers are made
        self._step_ends = StepEnds()
        self._process = os.getpid()
        self._known: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()  # of every network
        self._undo: list[Callable[[], None]] = []
        self._interrupted = False
        self._looks = 0  # for the networks that an optimizer updates

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the enclosed code runs; afterwards nothing is left behind."""
        self.begin()
        status = "finished"
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            status = "interrupted"
            raise
        except SystemExit as stop:
            status = "interrupted" if self._interrupted else "failed" if stop.code else "finished"
            raise
        except BaseException:
            status = "failed"
            raise
        finally:
            self.end(status)

    def begin(self) -> None:
        """Watch from here."""
        self._step_ends.watch_loaders()
        self._made.replace(Optimizer, "__init__", self._counting_optimizers)
        self._unlisten = listen(self._before_update, self._after_update)
        on_stranger(self._meet_stranger)

    def end(self, status: str) -> None:
        """Close the run and leave nothing behind. Idempotent, and nothing in a child that was forked."""
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        self._made.restore()
        self._unlisten()
        on_stranger(None)
        attempt(RecordingPart.RECORDING, undo_all, self._undo)
        attempt(RecordingPart.RECORDING, self._step_ends.end, finished=status == "finished")
        if self.recorder is not None:
            self.recorder.stop(status)
        attempt(RecordingPart.RECORDING, self._step_ends.leave_loaders)
        if self._seat is not None:
            self._seat.leave()

    # -- networks ------------------------------------------------------------------------------------------

    def _counting_optimizers(self, original: Any) -> Any:
        """Whoever makes an optimizer is about to train something."""

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            attempt(RecordingPart.RECORDING, self._step_ends.optimizer_made)
            if os.getpid() != self._process and attempt(RecordingPart.RECORDING, self._on_fork, self):
                self._process = os.getpid()

        return make

    def _meet_stranger(self, module: nn.Module) -> None:
        """A module was called from outside of the networks that were found."""
        if os.getpid() != self._process:
            return  # a forked process, such as a loader's worker, is none of ours
        if self.recorder is not None:
            step = self.recorder.step_so_far
            if step.forward_depth or step.backward_depth or self.recorder.timeline.elsewhere():
                return
        if id(module) not in self._known and next(module.parameters(), None) is not None:
            self._meet(module)

    def _close(self, failure: LaptimeError | None = None) -> None:
        """Take up no more networks."""
        self.failure = failure or self.failure
        on_stranger(None)

    def _meet(self, module: nn.Module) -> None:
        """Record the network of a module that is in no known one; on failure it runs unrecorded."""
        try:
            self._take_up(module)
        except AlreadyRecording:
            self._close(ScriptError(RECORDS_ITSELF))
        except Exception as error:
            self._close(error if isinstance(error, LaptimeError) else ScriptError(first_line(error)))
            if self.recorder is not None:
                self.recorder.stop("interrupted")
            self._refused(str(self.failure))

    def _take_up(self, module: nn.Module) -> None:
        caller = caller_of(module, _ours)
        if caller.building or id(caller.network) in self._known:
            return
        if self._holds_known_network(caller.network) and not self._start_again() and self._is_wrapper(caller):
            self._known[id(caller.network)] = caller.network
            return
        self._step_ends.before_network()
        self._add(caller)
        if caller.home is not None and self.recorder is not None:
            follow = import_module(caller.home).follow
            self._drive(True)
            self._undo.append(follow(caller.trainer, self.recorder, caller.network, self._drive))

    def _holds_known_network(self, module: nn.Module) -> bool:
        networks = self.recorder.hooks.networks if self.recorder is not None else []
        roots = {id(network.root) for network in networks}
        return any(id(part) in roots for part in module.modules())

    def _is_wrapper(self, caller: Caller) -> bool:
        """Whether there is nothing new in this module, and the network in it is called as before."""
        known = {id(p) for module in self._known.values() for p in module.parameters(recurse=False)}
        return not is_compiled(caller.network) and all(id(p) in known for p in caller.network.parameters())

    def _start_again(self) -> bool:
        """Only part of a network had been called, to see its shapes: forget that, unless it was trained."""
        recorder = self.recorder
        if recorder is None or recorder.hooks.updates.total or recorder.evidence.backward or self._undo:
            return False
        if several() or (self._seat is not None and self._seat.rank):
            return False  # other ranks write there
        if not set(os.listdir(self._out)) <= OURS:
            return False  # the script keeps files of its own there
        recorder.stop()
        if not discard(self._out):
            return False
        self.recorder = None
        self._known.clear()
        return True

    def _add(self, caller: Caller) -> None:
        if self.recorder is None:
            self._start(caller)
        elif len(self.recorder.hooks.networks) >= MOST_NETWORKS:
            self.recorder.facts.note(f"only the first {MOST_NETWORKS} networks were recorded")
            self._close()
            return
        else:
            taken = {network.name for network in self.recorder.hooks.networks}
            self.recorder.add_network(_free_name(caller, taken), caller.network)
        self._known |= {id(module): module for module in caller.network.modules()}

    def _start(self, caller: Caller) -> None:
        rank = 0
        if self._seats is not None:
            self._out = self._seats.place(self._out)
            self._seat = self._seat or self._seats.take()
            rank = self._seat.rank
        recorder = Recorder(
            {caller.name: caller.network},
            out=self._out,
            rank=rank,
            joins=rank > 0,
            listener=self,
            **self._options,
        )
        recorder.start()
        self.recorder = recorder
        self._step_ends.follow(recorder)
        recorder.open()

    # -- what the recording tells --------------------------------------------------------------------------

    def before_draw(self, iterator: Any) -> None:
        self._step_ends.before_draw(iterator)

    def before_forward(self, unit: LayerUnit) -> None:
        self._step_ends.before_forward(unit)

    def before_backward(self) -> None:
        self._step_ends.before_backward()

    def before_update(self, optimizer: Optimizer) -> None:
        self._step_ends.before_update(optimizer)

    def after_update(self, optimizer: Optimizer) -> None:
        self._step_ends.after_update(optimizer)

    def unknown_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer steps for the first time: what it updates is a network that is known, or is met."""
        if self.recorder is None:
            return
        hooks = self.recorder.hooks
        theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p) in theirs for network in hooks.networks for p in network.root.parameters()):
            self._meet_updated(optimizer)
        hooks.updates.add(optimizer)

    def give_way(self) -> None:
        """The script begins a recording of its own: that one is kept."""
        self._close(ScriptError(RECORDS_ITSELF))
        if self.recorder is not None:
            self.recorder.stop("interrupted")
            self.recorder = None
            discard(self._out)

    def other_thread(self) -> bool:
        """A network is called in another thread; if nothing was trained so far, training begins there."""
        if self.recorder is None:
            return False
        if self.recorder.hooks.trained or not torch.is_grad_enabled():
            self.recorder.facts.note("the network was called in other threads, too, which is not recorded")
            return False
        self.recorder.begin_anew()
        self._step_ends.move()
        return True

    def _drive(self, driven: bool, error: BaseException | None = None) -> None:
        """A trainer starts or stops cutting its own steps."""
        self._step_ends.drive(driven)
        self._interrupted = isinstance(error, KeyboardInterrupt)

    # -- optimizers ----------------------------------------------------------------------------------------

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        """What is updated before any network was seen is called by other ways than modules are."""
        self._step_ends.update_begins(optimizer)
        if self.recorder is None and self.failure is None and os.getpid() == self._process:
            self._meet_updated(optimizer)

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._step_ends.update_ended(optimizer)

    def _meet_updated(self, optimizer: Optimizer) -> None:
        """Take up the networks that an optimizer updates."""
        if self._looks < MOST_LOOKS and not torch.compiler.is_compiling():
            self._looks += 1
            for network in networks_of(optimizer):
                if id(network) not in self._known and not self._holds_known_network(network):
                    self._meet(network)


def _warn_of(reason: str) -> None:
    warn(f"nothing is recorded from here on: {reason}")


_PACKAGE = Path(__file__).parents[2]
_WATCHING = tuple(str(_PACKAGE / name) for name in ("bridges", "recorder"))


def _ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_WATCHING)


def _free_name(caller: Caller, taken: set[str]) -> str:
    for name in (caller.name, class_name(caller.network)):
        if name not in taken:
            return name
    return next(name for number in count(2) if (name := f"{caller.name}{number}") not in taken)
