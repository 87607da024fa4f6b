"""Finding the networks and optimizers of a script as it uses them.

A network is the outermost module with parameters that the script calls. Until the networks are known,
`nn.Module.__call__` is watched; after that only their own hooks remain, so the search costs nothing later.
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

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from laptime.errors import AlreadyRecording, LaptimeError, ScriptError
from laptime.measure.collectives import several
from laptime.measure.division import is_compiled
from laptime.measure.guard import Part, attempt, shielded, warn
from laptime.measure.hooks import call_watched, on_stranger, undo_all, watch_class
from laptime.measure.patches import Patches
from laptime.measure.ranks import Seat, Seats
from laptime.measure.recorder import Recorder
from laptime.measure.scripts.callers import Caller, caller_of, class_name, networks_of
from laptime.measure.scripts.cuts import Cuts
from laptime.measure.timeline import MOST_OPTIMIZERS
from laptime.store import discard
from laptime.store.directory import RESERVE_FILE
from laptime.store.files import first_line

SEARCH_UPDATES = 3  # updates, or calls, without a new network, after which the search stops
SEARCH_CALLS = 100
OURS = {"run.json", "network.json", RESERVE_FILE, "csv", "steps", "layers", "kernels"}
RECORDS_ITSELF = "the script records itself with laptime; that recording is kept"
MOST_LOOKS = 8  # each looks at every object of the process
MOST_STRANGERS = 256  # each costs a look at the stack
MOST_NETWORKS = 32  # a sweep makes one after the other; beyond this many they are host time


class ScriptRecorder:
    """Follows a script from its first network call to its end."""

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
        self._handle: RemovableHandle | None = None
        self._made = Patches()  # on what tells that modules and optimizers are made
        self._cuts = Cuts()
        self._patches = Patches()
        self._process = os.getpid()
        self._searching = False
        self._calls = self._updates = 0  # since the search began
        self._known: dict[int, nn.Module] = {}  # every module of every network
        self._foreign: dict[int, Optimizer] = {}  # optimizers that update none of them
        self._undo: list[Callable[[], None]] = []
        self._interrupted = False
        self._classes: set[type] = set()  # of the modules that were made
        self._looks = 0  # for the networks that an optimizer updates
        self._strangers = 0  # networks that were met after the search

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
        self._cuts.watch_loaders()
        self._made.replace(Optimizer, "__init__", self._searching_again)
        self._made.replace(nn.Module, "__init__", self._noting_classes)
        self._handle = register_optimizer_step_pre_hook(self._before_update)
        on_stranger(self._meet_stranger)
        self._search()

    def end(self, status: str) -> None:
        """Close the run and leave nothing behind. Idempotent, and nothing in a child that was forked."""
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        self._made.restore()
        if self._handle is not None:
            self._handle.remove()
        on_stranger(None)
        self._stop_search()
        attempt(Part.RECORDING, undo_all, self._undo)
        attempt(Part.RECORDING, self._cuts.end, finished=status == "finished")
        if self.recorder is not None:
            self.recorder.stop(status)
        self._cuts.leave_loaders()
        if self._seat is not None:
            self._seat.leave()

    # -- networks --------------------------------------------------------------------------------------------

    def _search(self) -> None:
        self._calls = self._updates = 0
        self._watch_calls()

    def _watch_calls(self) -> None:
        if not self._searching and self.failure is None:
            self._searching = True
            self._patches.replace(nn.Module, "__call__", self._watching)

    def _stop_search(self) -> None:
        self._searching = False
        self._patches.restore()

    def _searching_again(self, original: Any) -> Any:
        """Whoever makes an optimizer is about to train something."""

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self._cuts.optimizers += 1
            attempt(Part.RECORDING, self._search_here)

        return make

    def _search_here(self) -> None:
        if os.getpid() != self._process and self._on_fork(self):
            self._process = os.getpid()
        self._search()

    def _noting_classes(self, original: Any) -> Any:
        """Networks that are called late are known by their classes once the search has stopped."""

        @functools.wraps(original)
        def make(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if type(module) not in self._classes and not torch.compiler.is_compiling():
                self._classes.add(type(module))
                if self.recorder is not None and not self._searching:
                    attempt(Part.RECORDING, self._watch_late, {type(module)})
            original(module, *args, **kwargs)

        return make

    def _watch_late(self, classes: set[type]) -> None:
        """Watch for calls of networks that are none of those that were found."""
        assert self.recorder is not None
        for kind in classes:
            watch_class(kind)
        self.recorder.instruments.watched_classes |= classes

    def _meet_stranger(self, module: nn.Module) -> None:
        if not self._searching and self._is_outermost(module) and id(module) not in self._known:
            self._meet(module)
            self._strangers += 1
            if self._strangers >= MOST_STRANGERS:
                on_stranger(None)

    def _end_search(self) -> None:
        """The networks seem to be known: from here on only those of other classes, and copies, are new."""
        self._stop_search()
        if self.recorder is not None:
            inner = {type(module) for module in self._known.values()}
            roots = {type(network.root) for network in self.recorder.instruments.networks}
            self._watch_late((self._classes - inner) | roots)

    def _watching(self, original: Any) -> Any:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not attempt(Part.RECORDING, self._enters, module):
                return original(module, *args, **kwargs)
            try:
                return call_watched(module, original, args, kwargs)
            finally:
                attempt(Part.RECORDING, self._left)

        return call

    def _enters(self, module: nn.Module) -> bool:
        """Whether a network is called from outside; it is met then."""
        if not self._searching or not (self._is_known_network(module) or self._is_outermost(module)):
            return False
        # Not watched inside: what it calls is part of it, and torch.compile must see torch as it is.
        self._stop_search()
        self._calls += 1
        if id(module) not in self._known:
            self._meet(module)
        return True

    def _left(self) -> None:
        if self._calls < SEARCH_CALLS and self._updates < SEARCH_UPDATES:
            self._watch_calls()
        else:
            self._end_search()

    def _is_known_network(self, module: nn.Module) -> bool:
        """Whether a forward pass of a network that was found has just begun."""
        instruments = self.recorder.instruments if self.recorder is not None else None
        return (
            instruments is not None
            and instruments.forward_depth == 1
            and any(network.root is module for network in instruments.networks)
        )

    def _is_outermost(self, module: nn.Module) -> bool:
        if self.failure is not None:
            return False
        if self.recorder is not None:
            instruments = self.recorder.instruments
            if instruments.forward_depth or instruments.backward_depth or self.recorder.watch.elsewhere():
                return False
        # A forked process, such as a loader's worker, is none of ours.
        return next(module.parameters(), None) is not None and os.getpid() == self._process

    def _meet(self, module: nn.Module) -> None:
        """A module that belongs to no known network was called. What cannot be recorded runs unrecorded."""
        try:
            self._take_up(module)
        except AlreadyRecording:
            self.failure = ScriptError(RECORDS_ITSELF)
            self._stop_search()
        except Exception as error:
            self.failure = error if isinstance(error, LaptimeError) else ScriptError(first_line(error))
            self._stop_search()
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
        self._cuts.before_network()
        self._add(caller)
        if caller.home is not None and self.recorder is not None:
            follow = import_module(caller.home).follow
            self._drive(True)
            self._undo.append(follow(caller.trainer, self.recorder, caller.network, self._drive))

    def _holds_known_network(self, module: nn.Module) -> bool:
        networks = self.recorder.instruments.networks if self.recorder is not None else []
        roots = {id(network.root) for network in networks}
        return any(id(part) in roots for part in module.modules())

    def _is_wrapper(self, caller: Caller) -> bool:
        """Whether there is nothing new in this module, and the network in it is called as before."""
        known = {id(p) for module in self._known.values() for p in module.parameters(recurse=False)}
        return not is_compiled(caller.network) and all(id(p) in known for p in caller.network.parameters())

    def _start_again(self) -> bool:
        """Only part of a network had been called, to see its shapes: forget that, unless it was trained."""
        recorder = self.recorder
        if recorder is None or recorder.instruments.updates.total or recorder.seen.backward or self._undo:
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
            self.recorder = self._start(caller)
        elif len(self.recorder.instruments.networks) >= MOST_NETWORKS:
            self.recorder.facts.note(f"only the first {MOST_NETWORKS} networks were recorded")
            return
        else:
            taken = {network.name for network in self.recorder.instruments.networks}
            self.recorder.add_network(_free_name(caller, taken), caller.network)
        self._known |= {id(module): module for module in caller.network.modules()}
        self._calls = self._updates = 0

    def _start(self, caller: Caller) -> Recorder:
        rank = 0
        if self._seats is not None:
            self._out = self._seats.place(self._out)
            self._seat = self._seat or self._seats.take()
            rank = self._seat.rank
        recorder = Recorder(
            {caller.name: caller.network}, out=self._out, rank=rank, joins=rank > 0, **self._options
        )
        recorder.start()
        recorder.give_way = self._give_way
        recorder.open()
        recorder.instruments.on_other_thread = self._follow_thread
        recorder.instruments.updates.on_unknown = self._meet_optimizer
        recorder.instruments.updates.after = self._after_update
        self._cuts.follow(recorder)
        return recorder

    def _give_way(self) -> None:
        """The script begins a recording of its own: that one is kept."""
        self.failure = ScriptError(RECORDS_ITSELF)
        self._stop_search()
        on_stranger(None)
        if self.recorder is not None:
            self.recorder.stop("interrupted")
            self.recorder = None
            discard(self._out)

    def _follow_thread(self) -> bool:
        """A network is called in another thread; if nothing was trained so far, training begins there."""
        assert self.recorder is not None
        if self.recorder.instruments.trained or not torch.is_grad_enabled():
            self.recorder.facts.note("the network was called in other threads, too, which is not recorded")
            return False
        self.recorder.begin_anew()
        self._cuts.move()
        return True

    def _drive(self, driven: bool, error: BaseException | None = None) -> None:
        """A trainer starts or stops cutting its own steps."""
        self._cuts.driven = driven
        self._interrupted = isinstance(error, KeyboardInterrupt)

    # -- optimizers ------------------------------------------------------------------------------------------

    @shielded(Part.RECORDING)
    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        """What is updated before any network was seen is called by other ways than modules are."""
        if self.recorder is None and self.failure is None and os.getpid() == self._process:
            self._meet_updated(optimizer)

    def _meet_updated(self, optimizer: Optimizer) -> None:
        """Take up the networks that an optimizer updates."""
        if self._looks < MOST_LOOKS and not torch.compiler.is_compiling():
            self._looks += 1
            for network in networks_of(optimizer):
                if id(network) not in self._known and not self._holds_known_network(network):
                    self._meet(network)

    def _meet_optimizer(self, optimizer: Optimizer) -> None:
        assert self.recorder is not None
        instruments = self.recorder.instruments
        if len(instruments.updates.optimizers) >= MOST_OPTIMIZERS:
            self.recorder.facts.note(f"only the first {MOST_OPTIMIZERS} optimizers were charged as updates")
            return
        theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
        known = {id(p) for network in instruments.networks for p in network.root.parameters()}
        if theirs & known or id(optimizer) in self._foreign or self._searching:
            instruments.updates.add(optimizer)
        else:
            self._foreign[id(optimizer)] = optimizer
            self._meet_updated(optimizer)
            self._search()  # it trains a network that has not been seen, or an image

    def _after_update(self, optimizer: Optimizer) -> None:
        assert self.recorder is not None
        self._updates += 1
        if self.recorder.seen.backward and not self.recorder.seen.forward:
            self._search()  # something is trained that is not known
        elif self._searching and self._updates >= SEARCH_UPDATES:
            self._end_search()
        self._cuts.after_update(optimizer)


def _warn_of(reason: str) -> None:
    warn(f"nothing is recorded from here on: {reason}")


_FOLDER = str(Path(__file__).parents[1])


def _ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_FOLDER)


def _free_name(caller: Caller, taken: set[str]) -> str:
    for name in (caller.name, class_name(caller.network)):
        if name not in taken:
            return name
    return next(name for number in count(2) if (name := f"{caller.name}{number}") not in taken)
