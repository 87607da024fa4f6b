"""Tables and paragraphs in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; nothing where there are no rows."""
    lines = [f"| {' | '.join(one_line(cell) for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines, ""]) if lines else ""


def one_line(text: str) -> str:
    """Text for a cell."""
    return " ".join(text.replace("|", "\\|").split())


def prose(docstring: str) -> str:
    """A docstring as paragraphs; its aligned lists of arguments become tables."""
    return "\n".join(_parts(docstring))


def _parts(docstring: str) -> Iterator[str]:
    for paragraph in docstring.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if any(re.match(r"\w[\w, ]*\s{2,}\S", line) for line in lines):
            yield table(("argument", "meaning"), _arguments(lines))
        else:
            yield f"{one_line(paragraph)}\n".replace("\\|", "|")


def _arguments(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """`name, name  meaning`, the meaning going on in lines that begin with spaces."""
    name, meaning = "", ""
    for line in lines:
        if line.startswith(" ") or "  " not in line:
            meaning += f" {line.strip()}"
            continue
        if name:
            yield name, meaning
        words, _, meaning = line.partition("  ")
        name = ", ".join(f"`{word.strip()}`" for word in words.split(","))
    if name:
        yield name, meaning
