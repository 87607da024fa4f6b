"""Which settings may change when a training is resumed, and which would make it another training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laptime.errors import TrainingError
from laptime.files.text import one_line
from laptime.training.config import Config
from laptime.training.config.notation import written

LENGTH = ("train.epochs", "train.steps")
"""The length of a training: a finished one can be resumed with more."""

FREE = {
    *LENGTH,
    "name",
    "train.device",
    "train.threads",
    "train.memory_limit",
    "train.on_nan",
    "validation.every",
    "loader.workers",
    "loader.prefetch",
    "loader.pin_memory",
    "loader.ahead",
    "loader.resident",
    # Where the data is, not what: its samples and classes are compared themselves.
    "data.path",
    "data.remote",
    "data.labels",
    "data.on_corrupt",
}
FREE_SECTIONS = ("checkpoint.", "record.")

NAMES = {"workers": "--workers", "samples": "the number of samples", "classes": "the classes of the data"}

Changes = dict[str, tuple[Any, Any]]
"""By key, the value before and the value now."""


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of a stored configuration under its full key."""
    values: dict[str, Any] = {}
    for name, section in config.items():
        for key, value in section.items() if isinstance(section, dict) else ():
            if key == "options":
                values |= {f"{name}.{key}.{option}": chosen for option, chosen in value.items()}
            else:
                values[f"{name}.{key}"] = value
    return values


def changed(
    stored: Mapping[str, Any],
    config: Config,
    facts: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
) -> Changes:
    """What would make another training, in the configuration and in facts beside it that both sides know."""
    was, wanted = flat(stored), flat(config.model_dump(mode="json"))
    keys = [key for key in wanted if key in was or ".options." in key]
    keys += [key for key in was if ".options." in key and key not in wanted]
    pairs = {key: (was.get(key), wanted.get(key)) for key in keys if not _free(key)}
    pairs |= {key: (before, now[key]) for key, before in (facts or {}).items() if now and key in now}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _free(key: str) -> bool:
    return key in FREE or key.startswith(FREE_SECTIONS)


def longer(stored: Mapping[str, Any], config: Config) -> bool:
    """Whether the training is longer than before."""
    was, wanted = flat(stored), flat(config.model_dump(mode="json"))
    return any(was.get(key) != wanted[key] for key in LENGTH)


def refuse_if_changed(out: Path, changes: Changes) -> None:
    """One line with every key that differs, and both values."""
    if changes:
        pairs = [
            f"{NAMES.get(key, key)} was {written(was)} and is {written(now)}"
            for key, (was, now) in changes.items()
        ]
        listed = ", ".join(pairs[:6]) + (f" and {len(pairs) - 6} more" if len(pairs) > 6 else "")
        raise TrainingError(
            f"{one_line(out)} cannot go on as another training: {listed}; take the earlier values, or "
            "start anew with another --out"
        )
