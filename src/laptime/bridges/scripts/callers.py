"""Who called a network: the module it is part of, the name it goes by, the trainer that drives it.

Read from the stack, once for each network that `laptime run` finds.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from laptime.bridges.trainers import TRAINERS


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a call of a module comes from."""

    network: nn.Module  # the module, or the outermost one that it is part of and that is at work
    name: str
    trainer: Any = None
    home: str | None = None  # the module of ours that follows this trainer
    building: bool = False  # the module is called while it, or what it is part of, is being built


def caller_of(module: nn.Module, skip: Callable[[CodeType], bool]) -> Caller:
    """Look up the stack. `skip` says which code is ours."""
    network, name, trainer, home, building = module, "", None, None, False
    for frame in _frames(skip):
        myself = _first_argument(frame)
        if isinstance(myself, nn.Module) and myself is not network:
            if frame.f_code.co_name == "__init__":
                building = True
            elif any(part is network for part in myself.modules()):
                network, name = myself, ""
        if trainer is None:
            home = _home(myself)
            trainer = myself if home else None
        name = name or _variable(frame, network)
    return Caller(network, name or class_name(network), trainer, home, building)


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


def _frames(skip: Callable[[CodeType], bool]) -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if not skip(frame.f_code):
            yield frame
        frame = frame.f_back


def _first_argument(frame: FrameType) -> Any:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _home(candidate: Any) -> str | None:
    """The bridge to the trainer that this object is. Trainers are looked up, never imported."""
    for supported in TRAINERS:
        for module in supported.homes:
            trainer = getattr(sys.modules.get(module), "Trainer", None)
            if trainer is not None and isinstance(candidate, trainer):
                return supported.bridge
    return None


def _variable(frame: FrameType, network: nn.Module) -> str:
    """The name of a variable that holds the network."""
    names = (name for name, value in frame.f_locals.items() if value is network)
    return next((name for name in names if name != "self" and not name.startswith("_")), "")
