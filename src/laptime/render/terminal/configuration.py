"""Every value of a configuration in the terminal: its key, what it is, why, and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from laptime.files.text import one_line
from laptime.render.terminal.fit import GAP, paragraph

_TITLES = ("key", "value", "why", "meaning")
_INDENT = 4


def lines(rows: Sequence[tuple[str, str, str, str]], width: int | None = None) -> Iterator[Text]:
    """A line for each value, nothing of it shortened; `width` is the terminal's, None: there is none.

    Where the lines would be wider than the terminal, the meaning stands below its value.
    """
    cells = [tuple(map(one_line, row)) for row in (_TITLES, *rows)]
    widths = [max(cell_len(row[place]) for row in cells) for place in range(3)]
    below = width is not None and max(_length(row, widths) for row in cells) > width
    for place, row in enumerate(cells):
        style = "" if place else "bold"
        padded = [cell + " " * (size - cell_len(cell)) for cell, size in zip(row[:3], widths, strict=True)]
        if not below:
            padded.append(row[3])
        yield Text(GAP.join(padded).rstrip(), style=style, no_wrap=True)
        if below and place:
            yield from paragraph(row[3], width or 0, bullet=" " * _INDENT, style="dim")


def _length(row: Sequence[str], widths: Sequence[int]) -> int:
    return sum(widths) + 3 * len(GAP) + cell_len(row[3])
