"""Every configuration key, written from the schema between two marks of docs/configuration.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from laptime.training.config import fields
from laptime.training.config.fields import written
from laptime.training.data.kinds import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN = "<!-- reference: written by `make docs` -->"
END = "<!-- end of reference -->"


def reference() -> str:
    """Markdown tables, one for each section and each kind of data."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from _table("", [fields.keys("")["name"]], "")
    for section in fields.sections():
        for kind in KINDS if section == "data" else ("",):
            title = f'`[data]` with `kind = "{kind}"`' if kind else f"`[{section}]`"
            keys = [
                key
                for key in fields.keys(kind).values()
                if key.name.startswith(f"{section}.") and key.name != "data.kind"
            ]
            yield from _table(title, keys, _doc(fields.model(section, kind)))


def _table(title: str, keys: list[fields.Key], doc: str) -> Iterator[str]:
    if title:
        yield from (f"### {title}", "", doc, "")
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    for key in keys:
        yield f"| `{key.name}` | {key.words} | {_default(key)} | {key.meaning.replace('|', '/')} |"
    yield ""


def _default(key: fields.Key) -> str:
    if key.info.is_required():
        return "(required)"
    return "–" if key.default in (None, "", {}, ()) else f"`{written(key.default)}`"


def _doc(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def put_into(text: str) -> str:
    """The document with its reference brought up to date."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"
