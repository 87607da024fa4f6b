"""Finding the networks and optimizers of a script as it uses them.

A network is the outermost module with parameters that the script calls, however late; inside of networks
nothing is looked for, so the search costs nothing there. Who called it is read from the stack, once for each
network: the module it is part of, the name it goes by, the trainer that drives it.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from laptime.bridges import TRAINERS
from laptime.bridges.ranks import Seat
from laptime.bridges.scripts.step_ends import StepEnds
from laptime.errors import AlreadyRecording, LaptimeError, ScriptError
from laptime.files.text import first_line
from laptime.recorder.collectives import several
from laptime.recorder.guard import RecordingPart, attempt, warn
from laptime.recorder.layer_division import is_compiled
from laptime.recorder.optimizer_steps import listen
from laptime.recorder.recorder import Recorder
from laptime.recorder.torch_patches import Patches, on_stranger, undo_all
from laptime.runs import discard
from laptime.runs.directory import only_of_a_run

RECORDS_ITSELF = "the script records itself with laptime; that recording is kept"
MOST_LOOKS = 8  # each looks at every object of the process
MOST_NETWORKS = 32  # a sweep makes one after the other; beyond this many they are host time


class ScriptRecorder(StepEnds):
    """Follows a script from its first network call to its end, and cuts its steps."""

    def __init__(
        self,
        out: Path,
        *,
        seat: Seat | None = None,
        on_fork: Callable[[ScriptRecorder], bool] = lambda _: False,
        refused: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.failure: LaptimeError | None = None  # why nothing can be recorded
        self._out = out
        self._options = options
        self._seat = seat  # in a run that other processes write to as well
        self._on_fork = on_fork  # a forked child is about to train
        self._refused = refused or _warn  # told why there is no recording
        self._ended = False
        self._unlisten: Callable[[], None] = lambda: None
        self._patches = Patches()  # on loaders, and on what makes optimizers
        self._process = os.getpid()
        self._known: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()  # of every network
        self._undo: list[Callable[[], None]] = []
        self._interrupted = False
        self._looks = 0  # for the networks that an optimizer updates

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the enclosed code runs; afterwards nothing is left behind."""
        self.begin()
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise
        self.end()

    def begin(self) -> None:
        """Watch from here."""
        self.watch_loaders(self._patches)
        self._patches.replace(Optimizer, "__init__", self._counting_optimizers)
        self._unlisten = listen(self._before_update, self._after_update)
        on_stranger(self._meet_stranger)

    def end(self, error: BaseException | None = None) -> None:
        """Close the run and leave nothing behind. Idempotent, and nothing in a child that was forked."""
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        status = "failed" if error is not None else "finished"
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            status = "interrupted"
        elif isinstance(error, SystemExit):
            status = "interrupted" if self._interrupted else "failed" if error.code else "finished"
        self._unlisten()
        on_stranger(None)
        attempt(RecordingPart.RECORDING, undo_all, self._undo)
        attempt(RecordingPart.RECORDING, self.end_last_step, finished=status == "finished")
        if self.recorder is not None:
            self.recorder.stop(status)
        attempt(RecordingPart.RECORDING, self._patches.restore)  # after the recording has restored its own
        if self._seat is not None:
            self._seat.leave()

    # -- networks ------------------------------------------------------------------------------------------

    def _counting_optimizers(self, original: Any) -> Any:
        """Whoever makes an optimizer is about to train something."""

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            attempt(RecordingPart.RECORDING, self.optimizer_made)
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
        caller = caller_of(module)
        if caller.building or id(caller.network) in self._known:
            return
        if self._holds_known_network(caller.network) and not self._start_again() and self._is_wrapper(caller):
            self._known[id(caller.network)] = caller.network
            return
        self.before_network()
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
        if not only_of_a_run(self._out):
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
            numbered = (f"{caller.name}{number}" for number in count(2))
            names = chain((caller.name, class_name(caller.network)), numbered)
            self.recorder.add_network(next(name for name in names if name not in taken), caller.network)
        self._known |= {id(module): module for module in caller.network.modules()}

    def _start(self, caller: Caller) -> None:
        rank = 0
        if self._seat is not None:
            self._out = self._seat.place(self._out)
            rank = self._seat.take()
        network, joins = {caller.name: caller.network}, rank > 0
        recorder = Recorder(network, out=self._out, rank=rank, joins=joins, listener=self, **self._options)
        recorder.start()
        self.recorder = recorder
        recorder.open()

    # -- what the recording tells --------------------------------------------------------------------------

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
        self.move()
        return True

    def _drive(self, driven: bool, error: BaseException | None = None) -> None:
        """A trainer starts or stops cutting its own steps."""
        self.driven = driven
        self._interrupted = isinstance(error, KeyboardInterrupt)

    # -- optimizers ----------------------------------------------------------------------------------------

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        """What is updated before any network was seen is called by other ways than modules are."""
        self.updating.add(id(optimizer))
        if self.recorder is None and self.failure is None and os.getpid() == self._process:
            self._meet_updated(optimizer)

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        self.updating.discard(id(optimizer))

    def _meet_updated(self, optimizer: Optimizer) -> None:
        """Take up the networks that an optimizer updates."""
        if self._looks < MOST_LOOKS and not torch.compiler.is_compiling():
            self._looks += 1
            for network in networks_of(optimizer):
                if id(network) not in self._known and not self._holds_known_network(network):
                    self._meet(network)


def _warn(reason: str) -> None:
    warn(f"nothing is recorded from here on: {reason}")


# -- who called a network ---------------------------------------------------------------------------------

_PACKAGE = Path(__file__).parents[2]
_WATCHING = tuple(str(_PACKAGE / name) for name in ("bridges", "recorder"))


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a call of a module comes from."""

    network: nn.Module  # the module, or the outermost one that it is part of and that is at work
    name: str
    trainer: Any = None
    home: str | None = None  # the module of ours that follows this trainer
    building: bool = False  # the module is called while it, or what it is part of, is being built


def caller_of(module: nn.Module) -> Caller:
    """Look up the stack, past our own code."""
    network, name, trainer, home, building = module, "", None, None, False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_WATCHING):
            variables = frame.f_locals
            myself = variables.get(code.co_varnames[0]) if code.co_argcount else None
            if isinstance(myself, nn.Module) and myself is not network:
                if code.co_name == "__init__":
                    building = True
                elif any(part is network for part in myself.modules()):
                    network, name = myself, ""
            if trainer is None:
                home = _home(myself)
                trainer = myself if home else None
            names = (key for key, value in variables.items() if value is network)
            name = name or next((key for key in names if key != "self" and not key.startswith("_")), "")
        frame = frame.f_back
    return Caller(network, name or class_name(network), trainer, home, building)


def _home(candidate: Any) -> str | None:
    """The bridge to the trainer that this object is. Trainers are looked up, never imported."""
    for supported in TRAINERS:
        for module in supported.homes:
            trainer = getattr(sys.modules.get(module), "Trainer", None)
            if trainer is not None and isinstance(candidate, trainer):
                return supported.bridge
    return None


def networks_of(optimizer: Optimizer) -> list[nn.Module]:
    """The outermost modules that hold parameters of an optimizer, among all objects of the process."""
    mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
    # By `type`: `isinstance` would ask objects of others for their class, and some answer with an import.
    modules = [
        candidate
        for candidate in gc.get_objects()
        if issubclass(type(candidate), nn.Module) and "_modules" in vars(candidate)
    ]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [module for module in modules if id(module) not in inner]
    return [module for module in outermost if any(id(p) in mine for p in module.parameters())]


def class_name(module: nn.Module) -> str:
    """The class of a module, or of the one that was compiled."""
    return type(getattr(module, "_orig_mod", module)).__name__
