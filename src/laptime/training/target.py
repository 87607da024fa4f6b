"""What is profiled and trained: a network by its name in the zoo, or `module:callable`."""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.errors import BadTarget

if TYPE_CHECKING:
    from torch import nn


def network(target: str, **options: Any) -> nn.Module:
    """The network that a target names, in training mode.

    The callable is given the options and returns a module; a module class is called, a module is taken as it
    is. The current directory can be imported from.
    """
    if ":" not in target:
        from laptime.training.networks import build

        return build(target, **options)
    from torch import nn

    found = attribute(target)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise BadTarget(f"{target} is of type {type(found).__name__}; name a module or a callable")
        try:
            found = found(**options)
        except Exception as error:
            takes = f"the options {', '.join(options)}" if options else "no arguments"
            entered = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            way = f"mend it: it is called with {takes}" if entered else f"name a callable that takes {takes}"
            raise BadTarget(f"{target}() raised {describe(error)}; {way}") from error
    if not isinstance(found, nn.Module):
        raise BadTarget(f"{target}() returned a {type(found).__name__}, not an nn.Module")
    return found.train()


def look_in(folder: Path) -> None:
    """Import from this folder before any other, as Python does from that of a script."""
    place = os.path.abspath(folder)
    sys.path[:] = [place, *(one for one in sys.path if one != place)]


def attribute(target: str) -> Any:
    """What `module:callable` names."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise BadTarget(f"{target!r} is not module:callable, such as mypackage.models:build")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
    except Exception as error:
        raise BadTarget(
            f"{module_name} cannot be imported ({describe(error)}); name it as `import` would"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            near = difflib.get_close_matches(name, dir(found), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "look for its spelling"
            raise BadTarget(f"{module_name} has no {path!r}; {hint}")
        found = getattr(found, name)
    return found


def describe(error: BaseException) -> str:
    """An error in a few words: its class, and the first line it says."""
    from laptime.files.text import first_line

    said = first_line(error)
    kind = type(error).__name__
    return kind if said == kind else f"{kind}: {said[:200]}"
