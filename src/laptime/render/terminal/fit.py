"""Text that fits a terminal's width: names shortened, sentences over several lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

GAP = "  "
_LONGEST = 4000  # characters of a text that are looked at; no terminal shows more of a cell
_UNITS = re.compile(r"(?<=\d) (?=(?:ms|s|MiB|samples/s)\b|%)")
_UNBROKEN = "\N{NO-BREAK SPACE}"  # which textwrap does not break at


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` cells. Its end stays: `…h.11.mlp.c_fc` tells more than `transformer.h…`.

    A number is not cut in two: of `block.17.conv` stays `….conv`, not the `…7.conv` of another block.
    """
    if len(text) <= _LONGEST and cell_len(text) <= width:
        return text
    start, left = len(text), width - 1
    while start and (left := left - cell_len(text[start - 1])) >= 0:
        start -= 1
    rest = text[start:]
    if start and rest[:1].isdigit() and text[start - 1].isdigit():
        rest = rest.lstrip("0123456789") or rest
    return "…" + rest


def broken(text: str, width: int) -> list[str]:
    """`text` over lines of at most `width` cells; a very long one is cut."""
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return textwrap.wrap(cut, width, break_on_hyphens=False)


def paragraph(text: str, width: int, *, bullet: str = "", style: str = "") -> list[Text]:
    """A sentence over as many lines as it needs, indented under its bullet. A number stays with its unit."""
    lines = textwrap.wrap(
        _UNITS.sub(_UNBROKEN, text if len(text) <= _LONGEST else text[:_LONGEST] + "…"),
        max(width, 20),
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_on_hyphens=False,
    )
    return [Text(line.replace(_UNBROKEN, " "), style=style, no_wrap=True) for line in lines]


def facts(given: Sequence[str], width: int, *, style: str = "") -> list[Text]:
    """Facts on one line, with a dot between them; a line ends only between two facts."""
    lines: list[str] = []
    for fact in given:
        if lines and cell_len(lines[-1]) + 3 + cell_len(fact) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines.append(fact)
    return [part for line in lines for part in paragraph(line, width, style=style)]
