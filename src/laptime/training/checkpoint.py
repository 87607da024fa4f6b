"""Checkpoints: the state that the next step depends on, its file, and what may change before it is resumed.

Files are written whole or not at all, and read without running code from them.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.amp import GradScaler

from laptime.errors import TrainingError
from laptime.files.read import check_memory, open_plain
from laptime.files.text import first_line, one_line
from laptime.files.write import replacing
from laptime.recorder.backends import accelerators
from laptime.runs.directory import CHECKPOINT_FOLDER, LAST_CHECKPOINT, unused
from laptime.training.config import Config
from laptime.training.config.fields import written
from laptime.training.config.reading import leaves

if TYPE_CHECKING:
    from laptime.training.build import Ready

LAST, BEST = LAST_CHECKPOINT, f"{CHECKPOINT_FOLDER}/best.pt"  # in a run's directory
VERSION = 1


# -- files ---------------------------------------------------------------------------------------------------


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
        self.flush = file.flush
        self.refusal: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.refusal = error
            raise


def load(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, on the CPU. Only tensors and plain values are read, never code."""
    name, out = one_line(path), path.parent.parent
    if not path.exists():
        raise TrainingError(f"there is no checkpoint {name}; {_anew(out)}")
    try:
        with open_plain(path, inside=out) as file:
            check_memory(file, path)
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        version = state["version"]
    except Exception as error:
        raise TrainingError(
            f"the checkpoint {name} cannot be read ({first_line(error)}); {_anew(out)}"
        ) from error
    if version != VERSION:
        raise TrainingError(
            f"the checkpoint {name} has version {one_line(version)[:20]}, this laptime reads {VERSION}; "
            f"{_anew(out)}"
        )
    return state


def _anew(out: Path) -> str:
    """What to type to train from the beginning where a run's checkpoint cannot be used."""
    if not out.exists() or not any(out.iterdir()):
        return "start without --resume"
    return f"start anew without --resume and with --out {shlex.quote(str(unused(out)))}"


# -- state ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counts:
    """The progress of a training."""

    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    step: int = 0  # training steps since the start
    recorded: int = 0  # steps of the run, validation included
    updates: int = 0
    elapsed_s: float = 0.0
    attempt: int = 0
    best: float = float("inf")
    validation_loss: float = float("inf")  # of the last validation
    validation_top1: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Collects and restores everything that the next step depends on."""

    config: Config
    ready: Ready
    scaler: GradScaler

    def collect(self, counts: Counts) -> dict[str, Any]:
        """The state as tensors and plain values. All ranks must call it."""
        following = replace(counts, attempt=counts.attempt + 1)
        return {
            "network": self.ready.strategy.network_state(self.ready.network),
            "optimizers": {
                name: self.ready.strategy.optimizer_state(part)
                for name, part in self.ready.optimizers.items()
            },
            "schedules": {name: part.state_dict() for name, part in self.ready.schedules.items()},
            "scaler": self.scaler.state_dict(),
            "counts": {name: getattr(following, name) for name in Counts.__slots__},
            "random": self.ready.setup.ranks.gather(_random_states()),
            "config": self.config.model_dump(mode="json"),
            "facts": self._facts(),
        }

    def _facts(self) -> dict[str, Any]:
        """What a step depends on beside the configuration."""
        data, workers = self.ready.data, self.ready.setup.ranks.ranks
        fold, classes = data.facts.get("fold"), list(data.classes)
        return {"workers": workers, "samples": self.ready.samples, "classes": classes, "fold": fold}

    def restore(self, state: dict[str, Any], out: Path) -> tuple[Counts, dict[str, Any] | None]:
        """Restore a state; returns the progress and this rank's random states."""
        rank = self.ready.setup.ranks.rank
        known = {"workers": len(state.get("random", ()))} | state.get("facts", {})
        refuse_if_changed(out, state.get("config", {}), self.config, facts=known, now=self._facts())
        try:
            self.ready.strategy.load_network(self.ready.network, state["network"])
            for name, optimizer in self.ready.optimizers.items():
                self.ready.strategy.load_optimizer(optimizer, state["optimizers"][name])
            for name, schedule in self.ready.schedules.items():
                schedule.load_state_dict(state["schedules"][name])
            self.scaler.load_state_dict(state["scaler"])
            random = state["random"][rank] if rank < len(state["random"]) else None
            return Counts(**state["counts"]), random
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise TrainingError(
                f"the checkpoint does not fit this configuration ({first_line(error)}); "
                f"use the configuration it was made with, or {_anew(out)}"
            ) from error


def _random_states() -> dict[str, Any]:
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


# -- what may change before a training is resumed ------------------------------------------------------------

_LENGTH = ("train.epochs", "train.steps", "train.until.loss", "train.until.top1")
_FREE = (
    *_LENGTH,
    *("train.device", "train.threads", "train.memory_limit", "train.on_nan"),
    *("loader.workers", "loader.prefetch", "loader.pin_memory", "loader.ahead", "loader.resident"),
    # Where the data is, not what: its samples and classes are compared themselves.
    *("data.path", "data.remote", "data.labels", "data.on_corrupt"),
    "validation.every",
)
_FREE_SECTIONS = ("checkpoint", "record")
_NAMES = {"workers": "--workers", "samples": "the number of samples", "classes": "the classes of the data"}


def refuse_if_changed(
    out: Path, stored: Mapping[str, Any], config: Config, *, facts: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Raise where the stored run would become another training, with every key that differs.

    `facts` are what the run depended on beside its configuration; `now`, what a training depends on now.
    """
    pairs = _pairs(stored, config) | {key: (was, now[key]) for key, was in facts.items() if key in now}
    changes = [
        f"{_NAMES.get(key, key)} was {written(was)} and is {written(wanted)}"
        for key, (was, wanted) in pairs.items()
        if was != wanted and key not in _FREE and key.partition(".")[0] not in _FREE_SECTIONS
    ]
    if changes:
        listed = ", ".join(changes[:6]) + (f" and {len(changes) - 6} more" if len(changes) > 6 else "")
        raise TrainingError(
            f"{one_line(out)} cannot go on as another training: {listed}; take the earlier values, or "
            "start anew with another --out"
        )


def longer(stored: Mapping[str, Any], config: Config) -> bool:
    """Whether a finished training is to be longer than it was."""
    pairs = _pairs(stored, config)
    return any(pairs[key][0] != pairs[key][1] for key in _LENGTH if key in pairs)


def _pairs(stored: Mapping[str, Any], config: Config) -> dict[str, tuple[Any, Any]]:
    """Each value as it was and as it is, by full key. Keys of one version of laptime only are left out."""
    was, wanted = leaves(stored), leaves(config.model_dump(mode="json"))
    both = [
        key for key in wanted | was if ".options." in key or ("." in key and key in was and key in wanted)
    ]
    return {key: (was.get(key), wanted.get(key)) for key in both}
