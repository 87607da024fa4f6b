"""Options of `laptime predict` that cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from laptime.cli.options import wrong

if TYPE_CHECKING:
    from laptime.hardware import Device


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
    from laptime.estimate.predict import MOST_GPUS

    if max(counts) > MOST_GPUS:
        wrong("--gpus", f"{max(counts)} GPUs are more than one node has; give {MOST_GPUS} at most")
    if gpus_per_link is not None and gpus_per_link > min(counts):
        wrong("--gpus-per-link", f"{gpus_per_link} GPUs cannot share a link where --gpus is {min(counts)}")


def named_device(name: str, counts: Sequence[int]) -> Device:
    """The device of that name, as many of it as were asked for."""
    from laptime.estimate import device_speed

    found = device_speed.device(name)
    if found.kind == "cpu" and max(counts) > 1:
        wrong("--gpus", f"{found.name} is a CPU, of which a node has no {max(counts)}; leave --gpus out")
    return found
