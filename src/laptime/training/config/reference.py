"""The reference of every key, written from the schema: `python -m laptime.training.config.reference FILE`.

What lies between the two marks in FILE is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from laptime.training.config import fields
from laptime.training.config.explain import written

BEGIN = "<!-- reference: written by python -m laptime.training.config.reference -->"
END = "<!-- end of reference -->"


def reference() -> str:
    """Markdown tables, one for each section and each kind of data."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from _table("", [fields.known()["name", ""]], "")
    for section, models in fields.sections().items():
        for model in models:
            kind = model.model_fields["kind"].default if section == "data" else ""
            title = f'`[data]` with `kind = "{kind}"`' if kind else f"`[{section}]`"
            keys = [
                one
                for one in fields.known().values()
                if one.kind == kind and one.key.startswith(f"{section}.") and one.key != "data.kind"
            ]
            yield from _table(title, keys, _doc(model))


def _table(title: str, keys: list[fields.Known], doc: str) -> Iterator[str]:
    if title:
        yield from (f"### {title}", "", doc, "")
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    for one in keys:
        yield f"| `{one.key}` | {one.takes.words} | {_default(one)} | {one.meaning.replace('|', '/')} |"
    yield ""


def _default(known: fields.Known) -> str:
    if known.required:
        return "(required)"
    default = known.info.default
    return "–" if default in (None, "", {}, ()) else f"`{written(default)}`"


def _doc(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def put_into(text: str) -> str:
    """The document with its reference brought up to date."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def main(path: str) -> None:
    """Bring a file up to date."""
    file = Path(path)
    file.write_text(put_into(file.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
