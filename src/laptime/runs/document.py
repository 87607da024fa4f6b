"""`run.json`: read, upgraded to this version's form, and checked, since others may have written there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from laptime.errors import DamagedRun, NotARun, RunError
from laptime.files.parse import count, parse_json
from laptime.files.read import read_bytes, read_json
from laptime.files.text import first_line, one_line
from laptime.model import Stage
from laptime.runs import schema

RUN_FILE = "run.json"
NETWORK_FILE = "network.json"
WORKLOAD_FILE = "workload.json"
STATUSES = ("running", "finished", "failed", "interrupted")
_KEYS = {
    **dict.fromkeys(("id", "status", "created"), str),
    **dict.fromkeys(("heartbeat", "config", "environment", "summary", "outputs", "health"), dict),
}

_LARGEST = 1e300  # what is larger is no measurement, and some of it no float
_FORMS: Mapping[str, Mapping[str, Any]] = {
    "environment": {
        "device": {"name": str, "type": str, "memory_bytes": int, "tf32_convolutions": bool},
        "torch": str,
        "threads": int,
    },
    "summary": {
        "steps": {stage.value: int for stage in Stage},
        "step_s": {"median": float},
        "overhead": {
            **dict.fromkeys(("ratio", "low", "high"), float),
            "how": str,
            **dict.fromkeys(("instrumented_steps", "bare_steps"), int),
        },
        "budget": {"budget": float, "share": float},
        "kernels": {
            "steps": [int],
            "disturbed": [int],
            "detach": {"clean": bool, "ratio": float},
            "reconciliation": {"spans_apart": float, "busy_share": float},
        },
        "communication": {},
        "target": {
            "metric": str,
            **dict.fromkeys(("value", "seconds"), float),
            "reached": bool,
            **dict.fromkeys(("step", "epoch"), int),
        },
        "notes": [str],
        "workload": {},
        **dict.fromkeys(("wall_s", "named_share", "instrument_share", "host_clock_ratio"), float),
        "instrumented_steps": int,
    },
    "health": {
        **{key: dict.fromkeys(schema.TABLES, int) for key in ("written_rows", "waiting_rows", "lost_rows")},
        **dict.fromkeys(("last_step", "failed_checkpoints"), int),
        **dict.fromkeys(("problem", "reason", "since", "next_attempt", "checkpoint_reason"), str),
    },
}
"""Only what is read; everything else stays as it is. A list has items of one form."""
_WHOLE = ("target", "overhead", "detach", "reconciliation")  # of which a part says nothing


def read_document(directory: Path) -> dict[str, Any]:
    """The content of a directory's `run.json`, in this version's form."""
    path = directory / RUN_FILE
    try:
        content = read_bytes(path, inside=directory)
    except (FileNotFoundError, NotADirectoryError):
        what = "holds no run.json" if directory.is_dir() else "is not a directory"
        if not directory.exists():
            what = "does not exist"
        raise NotARun(f"{one_line(directory)} {what}; give the directory of a run") from None
    except OSError as error:
        raise RunError(f"{one_line(path)} cannot be read: {first_line(error)}") from error
    try:
        document = parse_json(content)
    except ValueError as error:
        what = "is empty" if not content.strip() else f"is cut off or altered ({first_line(error)})"
        raise DamagedRun(f"{one_line(path)} {what}; restore it from a copy") from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise NotARun(f"{one_line(path)} was not written by laptime; give the directory of a run")
    document = schema.upgrade(document, where=one_line(path))
    wrong = [key for key, kind in _KEYS.items() if not isinstance(document.get(key), kind)]
    if not wrong:
        try:
            created_at(document)
        except (ValueError, OverflowError):
            wrong = ["created"]
    if wrong:
        raise DamagedRun(f"{one_line(path)} is damaged ({', '.join(wrong)} missing); restore it from a copy")
    return document


def created_at(document: Mapping[str, Any]) -> datetime:
    """When a run was created. A year that no run has would overflow in another time zone."""
    when = datetime.fromisoformat(document["created"])
    if not 1970 <= when.year < 9999:
        raise ValueError(f"the year {when.year}")
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def sound(document: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A part of `run.json` without the values that have another form."""
    return _mapped(document[part], _FORMS[part], part) or {}


def formed(value: Any, form: Any, name: str = "") -> Any:
    """`value` as far as it has that form; None where it has another."""
    if isinstance(form, Mapping):
        return _mapped(value, form, name) if isinstance(value, Mapping) else None
    if isinstance(form, list):
        made = [formed(item, form[0]) for item in value] if isinstance(value, list) else []
        return [item for item in made if item is not None]
    if form is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if number and abs(value) < _LARGEST else None
    return value if type(value) is form and (form is not int or 0 <= value < 2**63) else None


def _mapped(value: Mapping[str, Any], form: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    known = {key: formed(value[key], each, key) for key, each in form.items() if key in value}
    wrong = {key for key, result in known.items() if result is None and value[key] is not None}
    if name in _WHOLE:
        empty = any(result is None and form[key] is not float for key, result in known.items())
        if wrong or empty or len(known) < len(form):
            return None
    return {key: known.get(key, each) for key, each in value.items() if key not in wrong}


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the writing goes, at a writer's last write. Rows are counted by table.

    Rank 0's is a part of `run.json`; another rank that had trouble leaves a `health-r<rank>.json`.
    """

    written_rows: Mapping[str, int] = field(default_factory=dict)
    waiting_rows: Mapping[str, int] = field(default_factory=dict)  # refused by the disk, still in memory
    lost_rows: Mapping[str, int] = field(default_factory=dict)  # given up
    last_step: int | None = None  # the highest number of a step that was to be written
    problem: str | None = None  # what the last writing could not do
    reason: str | None = None  # why rows could not be written, or could not last time, as the system says it
    since: str | None = None  # when rows were refused first
    next_attempt: str | None = None  # when the waiting rows are tried again
    failed_checkpoints: int = 0
    checkpoint_reason: str | None = None

    @classmethod
    def of(cls, document: Any) -> Self:
        """From JSON; whatever has another form is as if not there."""
        given = formed(document, _FORMS["health"]) or {}
        for key, value in given.items():
            if isinstance(value, dict):
                given[key] = {table: value[table] for table in schema.TABLES if value.get(table)}
        return cls(
            **{each.name: given[each.name] for each in fields(cls) if given.get(each.name) is not None}
        )

    @property
    def troubled(self) -> bool:
        """Whether there is anything to tell."""
        rows = (*self.waiting_rows.values(), *self.lost_rows.values())
        return any(rows) or self.problem is not None or self.failed_checkpoints > 0


def healths(directory: Path, first: Health) -> dict[int, Health]:
    """By rank; `first` is that of rank 0. A rank without trouble has left nothing."""
    by_rank = {0: first}
    for path in sorted(directory.glob("health-r*.json")):
        number = path.stem.removeprefix("health-r")
        try:
            by_rank[count(int(number))] = Health.of(read_json(path, inside=directory))
        except (OSError, ValueError):
            continue
    return by_rank


def settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its full name, `optimizer.lr`. Lists and empty groups are values."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from settings(value, name)
        else:
            yield name, value


def as_text(value: Any) -> str:
    """A setting as text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
