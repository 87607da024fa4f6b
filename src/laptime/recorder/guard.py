"""Internal errors never reach the training: no hook, patch or reader of a recording raises into it.

What fails ends the part of the recording it belongs to, says once what is lost and why, and the training goes
on. `shielded` is for what runs a few times a step; hooks that run at every layer catch by themselves, since a
`try` costs nothing and a call does.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class RecordingPart(StrEnum):
    """Parts that a recording can lose and go on; losing the last ends it."""

    LAYERS = "layer times"
    WORKLOAD = "the workload"
    KERNELS = "the kernel trace"
    COMMUNICATION = "the account of waiting for other ranks"
    RECORDING = "the recording"


Ending = Callable[[RecordingPart, str], None]
_ending: Ending | None = None


def watch_faults(ending: Ending | None) -> None:
    """From here on a fault is told to the recording; None: there is none any more."""
    global _ending
    _ending = ending


def failed(part: RecordingPart, error: BaseException) -> None:
    """Part of the recording failed: end it. Never raises."""
    ending = _ending
    if ending is None:
        return
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    try:
        ending(part, reason)
    except Exception as second:
        if part is not RecordingPart.RECORDING:
            failed(RecordingPart.RECORDING, second)


def shielded(part: RecordingPart) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate what runs in the user's thread: a fault in it ends `part`, and the call gives None."""

    def shield(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def safe(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                failed(part, error)
                return None

        vars(safe)["shields"] = part
        return safe

    return shield


def attempt(part: RecordingPart, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose fault ends `part`; None then."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        failed(part, error)
        return None


def warn(text: str) -> None:
    """Warn, also where warnings are errors: then the line goes to standard error."""
    try:
        warnings.warn(f"laptime: {text}", stacklevel=3)
    except Warning:
        with suppress(Exception):  # a script may have closed it
            sys.stderr.write(f"laptime: {text}\n")
