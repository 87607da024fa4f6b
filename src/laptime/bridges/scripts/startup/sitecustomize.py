"""Python runs this at the start of the child processes of a script under `laptime run`.

It waits for the first optimizer: whoever makes one is about to train, and is recorded from there. Loader
workers, launchers and resource trackers make none, so they pay a few microseconds here and nothing later.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

AWAITED = "torch.optim.optimizer"
HERE = os.path.dirname(os.path.abspath(__file__))


class OptimizerImport:
    """Looks on while modules are imported, and steps aside when the awaited one is."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None:
            _patch_after(spec.loader)
        return spec


def _patch_after(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        _await_first(module.Optimizer)

    loader.exec_module = exec_module


def _await_first(optimizer: Any) -> None:
    import functools

    original = optimizer.__init__

    @functools.wraps(original)
    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        if vars(optimizer).get("__init__") is first:
            optimizer.__init__ = original
            _begin()
        original(self, *args, **kwargs)

    optimizer.__init__ = first


def _begin() -> None:
    # A script that has come to laptime's recorder records itself.
    if "laptime.recorder.recorder" in sys.modules or "LAPTIME_RUN" not in os.environ:
        return
    try:
        from laptime.bridges.scripts.run import begin

        begin()
    except Exception as error:  # nothing of ours may end a training
        reason = f"laptime: process {os.getpid()} is not recorded ({type(error).__name__}: {error})"
        print(reason, file=sys.stderr)  # noqa: T201


def _run_hidden() -> None:
    """The sitecustomize that would have been run but for this one."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if "LAPTIME_RUN" in os.environ:
    sys.meta_path.insert(0, OptimizerImport())
if __name__ == "sitecustomize":
    _run_hidden()
