"""What the library says of its arguments, in the words of `laptime predict`; and what cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from laptime.cli.options import wrong
from laptime.errors import BadTarget, CalibrationError, LaptimeError

if TYPE_CHECKING:
    from laptime.hardware import Device

_HERE = {
    "save one with Workload.save": "save one with `laptime predict NETWORK --save FILE`",
    "read it with mode='inference'": "give --inference",
    "ask for mode='inference'": "give --inference",
    "use gpus=1": "leave --gpus out",
}
_LINKS = ("no storage is called", "no link is called")


@contextmanager
def in_options() -> Iterator[None]:
    """An error of the library names options where it would name arguments."""
    try:
        yield
    except LaptimeError as error:
        told = said = str(error)
        for theirs, ours in _HERE.items():
            told = told.replace(theirs, ours)
        if told.startswith(_LINKS):
            told = told.replace("`laptime devices` lists", "`laptime devices --links` lists")
        if isinstance(error, BadTarget) and _raised_inside(error.__cause__):
            told = told.partition("; name a callable")[0] + "; mend it: it is called without arguments"
        if told == said:
            raise
        raise LaptimeError(told) from error


def _raised_inside(error: BaseException | None) -> bool:
    """Whether a callable was entered: a wrong number of arguments is told before that."""
    trace = error.__traceback__ if error is not None else None
    return trace is not None and trace.tb_next is not None


def above_0(**given: float | None) -> None:
    """Options that are a number above 0 where they are given, by their names with underscores."""
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            wrong(f"--{name.replace('_', '-')}", f"{value:g} is not a number above 0")


def check_training(
    samples: int | None, epochs: int | None, within: float | None, under: float | None
) -> None:
    """Epochs alone say nothing; a choice needs the whole training."""
    if (within is not None or under is not None) and (samples is None or epochs is None):
        asking = "--within" if within is not None else "--under"
        wrong(asking, "it is about the whole training; give --samples and --epochs too")
    if epochs is not None and samples is None:
        wrong("--epochs", "how many samples has an epoch? give --samples too")


def check_gpus(counts: Sequence[int], gpus_per_link: int | None) -> None:
    """As many as one node has, and no more of them at a link."""
    from laptime.predict.predicting import MOST_GPUS

    if max(counts) > MOST_GPUS:
        wrong("--gpus", f"{max(counts)} GPUs are more than one node has; give {MOST_GPUS} at most")
    if gpus_per_link is not None and gpus_per_link > min(counts):
        wrong("--gpus-per-link", f"{gpus_per_link} GPUs cannot share a link where --gpus is {min(counts)}")


def named_device(name: str, counts: Sequence[int]) -> Device:
    """The device of that name, or one line that says why not."""
    from laptime.predict import devices

    kind = devices.HERE.get(name.lower())
    try:
        found = devices.device(name)
    except CalibrationError as error:
        if kind != "cuda" or "not calibrated yet" not in str(error):
            raise
        raise CalibrationError(_no_gpu(name)) from error
    if found.kind == "cpu" and max(counts) > 1:
        wrong("--gpus", f"{found.name} is a CPU, of which a node has no {max(counts)}; leave --gpus out")
    return found


def _no_gpu(name: str) -> str:
    import torch

    if torch.cuda.is_available():
        return "this GPU is not calibrated yet; run `laptime calibrate` first"
    return f"{name} means the GPU of this machine, which has none; give one of `laptime devices`"
