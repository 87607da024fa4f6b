"""`laptime run`: someone's training script, unedited. What it trains is found as it is used.

A network is the outermost module with parameters that the script calls. A step is one batch drawn from a
DataLoader; a script without one is cut after the last optimizer of each round. Until the networks are known,
`nn.Module.__call__` is watched; after that only their own hooks remain, so the search costs nothing later.
"""

from __future__ import annotations

import runpy
import sys
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from laptime.errors import RecordingError, ScriptError
from laptime.measure.division import Granularity
from laptime.measure.patches import Patches
from laptime.measure.recorder import Recorder

SEARCH_STEPS = 3  # train steps without a new network, after which the search stops


class ScriptRecorder:
    """Follows a script from its first network call to its end."""

    def __init__(self, out: Path, **options: Any) -> None:
        self.out = out
        self.recorder: Recorder | None = None
        self._options = options
        self._patches = Patches()
        self._searching = False
        self._searched = 0
        self._draws = 0
        self._stepped: set[int] = set()
        self._rounds: list[int] = []  # optimizers in the order in which they were first stepped
        self._epochs: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._epoch = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the enclosed code runs; afterwards nothing is left behind."""
        loaders = Patches()
        loaders.replace(DataLoader, "__iter__", self._counting_epochs)
        self._search()
        status = "finished"
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            status = "interrupted"
            raise
        except SystemExit as stop:
            status = "finished" if not stop.code else "failed"
            raise
        except BaseException:
            status = "failed"
            raise
        finally:
            self._stop_search()
            loaders.restore()
            if self.recorder is not None:
                if self.recorder.seen.update or (
                    self.recorder.seen.forward and not self.recorder.seen.graded
                ):
                    self._lap()
                self.recorder.stop(status)

    # -- finding networks ------------------------------------------------------------------------------------

    def _search(self) -> None:
        if not self._searching:
            self._searching = True
            self._searched = 0
            self._patches.replace(nn.Module, "__call__", self._watching_calls)

    def _stop_search(self) -> None:
        self._searching = False
        self._patches.restore()

    def _watching_calls(self, original: Any) -> Any:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._is_new(module):
                return original(module, *args, **kwargs)
            # Not watched inside: what it calls is part of it, and torch.compile must see torch as it is.
            self._stop_search()
            self._found(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                self._search()

        return call

    def _is_new(self, module: nn.Module) -> bool:
        if self.recorder is not None:
            if self.recorder.instruments.forward_depth or self.recorder.instruments.backward_depth:
                return False
            if any(network.root is module for network in self.recorder.instruments.networks):
                return False
        return next(module.parameters(), None) is not None

    def _found(self, module: nn.Module) -> None:
        name = self._name(module)
        if self.recorder is None:
            self.recorder = Recorder({name: module}, out=self.out, **self._options)
            self.recorder.before_draw = self._before_draw
            self.recorder.start()
            self.recorder.open()
            self.recorder.instruments.on_unknown_optimizer = self._unknown_optimizer
            self.recorder.instruments.on_update = self._after_update
        else:
            self.recorder.add_network(name, module)

    def _name(self, module: nn.Module) -> str:
        name = type(getattr(module, "_orig_mod", module)).__name__
        taken = {network.name for network in self.recorder.instruments.networks} if self.recorder else set()
        return name if name not in taken else f"{name}{len(taken) + 1}"

    def _unknown_optimizer(self, optimizer: Optimizer) -> None:
        assert self.recorder is not None
        theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
        known = {id(p) for n in self.recorder.instruments.networks for p in n.root.parameters()}
        if theirs & known:
            self.recorder.instruments.add_optimizer(optimizer)
        else:
            self._search()  # it trains a network that has not been seen

    # -- cutting steps ---------------------------------------------------------------------------------------

    def _counting_epochs(self, original: Any) -> Any:
        def iterate(loader: DataLoader[Any]) -> Any:
            iterator = original(loader)
            self._epochs[loader] = self._epochs.get(loader, -1) + 1
            iterator._laptime_epoch = self._epochs[loader]
            return iterator

        return iterate

    def _before_draw(self, iterator: Any) -> None:
        """A batch is about to be drawn: the step that used the one before is over."""
        assert self.recorder is not None
        if self.recorder.seen.forward or self.recorder.seen.update:
            self._lap()
        self._draws += 1
        self._epoch = getattr(iterator, "_laptime_epoch", self._epoch)

    def _after_update(self, optimizer: Optimizer) -> None:
        """Without a loader a round ends with the last of its optimizers."""
        again = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        if id(optimizer) not in self._rounds:
            self._rounds.append(id(optimizer))  # the newest one is taken to close the round
        closes = id(optimizer) == self._rounds[-1]
        # With a loader the next draw cuts the step, unless one batch is used over and over.
        if again if self._draws else closes:
            self._lap()

    def _lap(self) -> None:
        assert self.recorder is not None
        seen = self.recorder.seen
        lost = seen.backward and not seen.forward
        self.recorder.lap(epoch=self._epoch)
        self._draws = 0
        self._stepped.clear()
        self._searched += 1
        if lost:
            self._search()
        elif self._searching and self._searched >= SEARCH_STEPS and seen.update:
            self._stop_search()


def run_script(
    path: Path,
    arguments: Sequence[str],
    *,
    out: Path,
    module: bool = False,
    every_step: bool = False,
    budget: float = 0.02,
    layers: Granularity = "layer",
    kernels: Sequence[int] = (),
) -> int:
    """Run a script (or a module, as `python -m`) as if by Python, recorded; returns its exit status."""
    if not module and not path.is_file():
        raise ScriptError(
            f"there is no script {path}; give the path of a Python file, or -m and a module name"
        )
    config = {"script": str(path), "arguments": list(arguments)}
    watcher = ScriptRecorder(
        out, every_step=every_step, budget=budget, layers=layers, kernels=kernels, config=config
    )
    saved_argv, saved_path = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, "" if module else str(path.resolve().parent))
    try:
        with watcher.watching():
            if module:
                runpy.run_module(str(path), run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(path), run_name="__main__")
        status = 0
    except SystemExit as stop:
        status = _exit_status(stop)
    except KeyboardInterrupt:
        status = 130  # the shell's number for Ctrl-C
    except Exception as error:
        if isinstance(error, RecordingError):
            raise
        _print_traceback(error)
        status = 1
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    if watcher.recorder is None and status == 0:
        raise ScriptError(f"{path} ran, but called no network with parameters: there was nothing to record")
    return status


def _exit_status(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)  # noqa: T201 (what Python itself does with sys.exit("text"))
    return 1


def _print_traceback(error: BaseException) -> None:
    """The script's own traceback, without the frames of laptime and runpy above it."""
    frames = traceback.TracebackException.from_exception(error)
    first = next(
        (i for i, f in enumerate(frames.stack) if "runpy" not in f.filename and __file__ != f.filename), 0
    )
    frames.stack = traceback.StackSummary.from_list(frames.stack[first:])
    sys.stderr.writelines(frames.format())
