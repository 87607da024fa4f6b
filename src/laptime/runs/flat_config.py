"""A nested configuration as one row of names and values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting with its full name: `optimizer.lr`. Lists and empty groups are values."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from settings(value, name)
        else:
            yield name, value


def as_text(value: Any) -> str:
    """A setting as text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
