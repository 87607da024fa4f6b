"""Checkpoint files: written whole or not at all, read without running code from them."""

from __future__ import annotations

import random
import shlex
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from laptime.errors import TrainingError
from laptime.files.read import open_plain
from laptime.files.text import first_line, one_line
from laptime.files.write import replacing
from laptime.recorder.backends import accelerators
from laptime.runs.directory import unused

FOLDER = "checkpoint"
LAST, BEST = "last.pt", "best.pt"
VERSION = 1


def random_states() -> dict[str, Any]:
    """The states of all random number generators that a step may use, as tensors and plain values."""
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, internal, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        **{backend.type: backend.random_states() if backend.count() else [] for backend in accelerators()},
        "numpy": [str(kind), np.asarray(keys).tolist(), position, has_gauss, cached],
        "python": [version, list(internal), gauss],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Restore the random number generators."""
    torch.set_rng_state(states["torch"])
    for backend in accelerators():
        if states.get(backend.type) and backend.count():
            backend.set_random_states(states[backend.type])
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a state under a hidden name, then rename it: a kill leaves the previous checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        disk = _Disk(file)
        try:
            torch.save({"version": VERSION, **state}, cast(IO[bytes], disk))
        except RuntimeError as error:
            raise disk.refusal or error from None


class _Disk:
    """A file for torch.save that keeps the OSError: torch's own error does not say that a disk is full."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.refusal: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.refusal = error
            raise

    def flush(self) -> None:
        self._file.flush()


def anew(path: Path) -> str:
    """What to type to train from the beginning where a checkpoint cannot be used."""
    out = path.parent.parent
    if not out.exists() or not any(out.iterdir()):
        return "start without --resume"
    return f"start anew without --resume and with --out {shlex.quote(str(unused(out)))}"


def load(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, on the CPU. Only tensors and plain values are read, never code."""
    if not path.exists():
        raise TrainingError(f"there is no checkpoint {one_line(path)}; {anew(path)}")
    try:
        with open_plain(path, inside=path.parent.parent) as file:
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        version = state["version"]
    except Exception as error:
        raise TrainingError(
            f"the checkpoint {one_line(path)} cannot be read ({first_line(error)}); {anew(path)}"
        ) from error
    if version != VERSION:
        raise TrainingError(
            f"the checkpoint {one_line(path)} has version {one_line(version)[:20]}, "
            f"this laptime reads {VERSION}; {anew(path)}"
        )
    return state
