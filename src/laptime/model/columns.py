"""Columns of a run's tables. Each is one field of a value: `name: Annotated[type, "meaning"] = default`.

The Arrow schema, the CSV headers, what `log()` keeps and the reference follow from the fields.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

LOGGED = object()  # marks a column that `recording.log()` fills

Int32 = Annotated[int, 32]
Logged = Annotated[float | None, LOGGED]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    """One column of a table."""

    name: str
    type: type
    bits: int  # of a number
    nullable: bool
    default: Any  # dataclasses.MISSING where every row must give it
    meaning: str
    logged: bool


def columns_of(value: type) -> tuple[StoredColumn, ...]:
    """The columns of a value's fields, in their order."""
    hints = get_type_hints(value, include_extras=True)
    return tuple(_column(field, hints[field.name]) for field in dataclasses.fields(value))


def _column(field: dataclasses.Field[Any], hint: Any) -> StoredColumn:
    facts = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    bare = get_args(hint)[0] if facts else hint
    types = [member for member in get_args(bare) or (bare,) if member is not NoneType]
    return StoredColumn(
        name=field.name,
        type=types[0],
        bits=next((fact for fact in facts if isinstance(fact, int)), 64),
        nullable=NoneType in get_args(bare),
        default=field.default,
        meaning=next((fact for fact in facts if isinstance(fact, str)), ""),
        logged=LOGGED in facts,
    )
