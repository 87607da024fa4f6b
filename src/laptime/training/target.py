"""What is profiled, trained and predicted: a network by its name, `module:callable` or `file.py:callable`."""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.errors import BadTarget

if TYPE_CHECKING:
    from torch import nn

    from laptime.training.networks.registry import ZooEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One input of a network, without the batch."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    ids: int | None = None

    def __str__(self) -> str:
        text = "x".join(map(str, self.shape))
        text = text if self.dtype == "float32" else f"{self.dtype}:{text}"
        return text if self.ids is None else f"{text}@{self.ids}"


def network(target: str, **options: Any) -> nn.Module:
    """The network that a target names, in training mode.

    The callable is given the options and returns a module; a module class is called, a module is taken as it
    is. The current directory can be imported from.
    """
    if ":" not in target and not target.endswith(".py"):
        from laptime.training.networks.registry import build

        return build(target, **options)
    from torch import nn

    value = attribute(target)
    if not isinstance(value, nn.Module):
        if not callable(value):
            raise BadTarget(f"{target} is of type {type(value).__name__}; name a module or a callable")
        try:
            value = value(**options)
        except Exception as error:
            takes = f"the options {', '.join(options)}" if options else "no arguments"
            entered = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            way = f"mend it: it is called with {takes}" if entered else f"name a callable that takes {takes}"
            raise BadTarget(f"{target}() raised {describe(error)}; {way}") from error
    if not isinstance(value, nn.Module):
        raise BadTarget(f"{target}() returned a {type(value).__name__}, not an nn.Module")
    return value.train()


def described(name: str) -> ZooEntry:
    """What the zoo knows of a network; of any other, such as `module:callable`, only how to make it."""
    from laptime.training.networks.registry import ZooEntry, entries

    return entries().get(name) or ZooEntry(name, make=partial(network, name), data="")


def look_in(folder: Path) -> None:
    """Import from this folder first, as Python does from the folder of a script."""
    first = os.path.abspath(folder)
    sys.path[:] = [first, *(other for other in sys.path if other != first)]


def attribute(target: str) -> Any:
    """What `module:callable` or `file.py:callable` names."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise BadTarget(
            f"{target!r} is not module:callable, such as mypackage.models:build, nor file.py:callable"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    is_file = module_name.endswith(".py")
    if is_file and not Path(module_name).is_file():
        raise BadTarget(f"there is no file {module_name}; give its path, or module:callable")
    try:
        value: Any = _imported(Path(module_name)) if is_file else import_module(module_name)
    except Exception as error:
        raise BadTarget(
            f"{module_name} cannot be imported ({describe(error)}); name it as `import` would"
        ) from error
    for name in path.split("."):
        if not hasattr(value, name):
            near = difflib.get_close_matches(name, dir(value), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "look for its spelling"
            raise BadTarget(f"{module_name} has no {path!r}; {hint}")
        value = getattr(value, name)
    return value


def _imported(file: Path) -> Any:
    """The module of a file, which may import what lies beside it."""
    look_in(file.resolve().parent)
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = module_from_spec(spec)
    before = sys.modules.get(file.stem)
    sys.modules[file.stem] = module  # where dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[file.stem]
        if before is not None:
            sys.modules[file.stem] = before
        raise
    return module


def describe(error: BaseException) -> str:
    """An error in a few words: its class, and the first line it says."""
    from laptime.files.text import first_line

    said = first_line(error)
    kind = type(error).__name__
    return kind if said == kind else f"{kind}: {said[:200]}"
