"""What `run.json` says, as far as it has the form that laptime writes: others may have written there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laptime.model import Stage

_LARGEST = 1e300  # what is larger is no measurement, and some of it no float
_COST = {
    **dict.fromkeys(("ratio", "low", "high"), float),
    "how": str,
    **dict.fromkeys(("instrumented_steps", "bare_steps"), int),
}
_KERNELS = {
    "steps": [int],
    "disturbed": [int],
    "detach": {"clean": bool, "ratio": float},
    "reconciliation": {"spans_apart": float, "busy_share": float},
}
_FORMS: Mapping[str, Mapping[str, Any]] = {
    "environment": {
        "device": {"name": str, "type": str, "memory_bytes": int, "tf32_convolutions": bool},
        "torch": str,
        "threads": int,
    },
    "summary": {
        "steps": {stage.value: int for stage in Stage},
        "step_s": {"median": float},
        "overhead": _COST,
        "budget": {"budget": float, "share": float},
        "kernels": _KERNELS,
        "communication": {},
        "notes": [str],
        "workload": {},
        **dict.fromkeys(("wall_s", "named_share", "instrument_share", "host_clock_ratio"), float),
        "instrumented_steps": int,
    },
}
"""Only what is read; everything else stays as it is. A list has items of one form."""
_WHOLE = ("overhead", "detach", "reconciliation")  # of which a part says nothing


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
