"""Tables that fit: columns are left out, least needed first, until the rest stands in the terminal's width.

Rows are plain lines, without the blanks at their ends that `rich.table` would leave in what is copied.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from laptime.render.terminal.fit import GAP, shortened

_NARROWEST = 8

Cell = str | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of finished cells. The first of a table is never left out, only shortened."""

    title: str
    cells: Sequence[Cell]
    needed: int = 0  # 0: always; otherwise the highest number goes first, with all that share it
    words: bool = False  # set to the left, where numbers are set to the right
    style: str = ""  # of the title
    styles: Sequence[str] = ()  # of the cells, one for each, where they have any
    room: int = 0  # cells it takes even where its own are shorter
    width: int = field(init=False)

    def __post_init__(self) -> None:
        width = max(cell_len(str(cell)) for cell in (self.title, *self.cells))
        object.__setattr__(self, "width", max(self.room, width))

    def cell(self, place: int) -> Cell:
        """A cell in its style."""
        cell = self.cells[place]
        return Text(cell, style=self.styles[place]) if self.styles and isinstance(cell, str) else cell


def table(columns: Sequence[Column], width: int, *, bold: Sequence[int] = ()) -> list[Text]:
    """A header and rows no wider than `width`, the rows of `bold` in bold."""
    chosen = fitting(columns, width)
    first = max(_NARROWEST, width - _taken(chosen[1:]))
    widths = [min(first, chosen[0].width), *(column.width for column in chosen[1:])]
    lines = [_line(chosen, widths, [Text(column.title, style=column.style) for column in chosen], "bold")]
    for place in range(len(columns[0].cells)):
        cells = [column.cell(place) for column in chosen]
        lines.append(_line(chosen, widths, cells, "bold" if place in bold else ""))
    return lines


def wrapped(columns: Sequence[Column], width: int, *, give: Sequence[int]) -> list[Text]:
    """A table that leaves nothing out: cells take several lines where the columns of `give` had to narrow.

    The first of these gives way first, each down to its longest word; the last is broken if all else fails.
    """
    widths = [column.width for column in columns]
    least = [_longest_word(column) for column in columns]
    for place in (*give, give[-1]):
        over = sum(widths) + len(GAP) * (len(widths) - 1) - width
        if over > 0:
            lowest = least[place] if widths[place] > least[place] else _NARROWEST
            widths[place] = min(widths[place], max(lowest, widths[place] - over))
    lines = _broken(columns, widths, [column.title for column in columns], "bold")
    for place in range(len(columns[0].cells)):
        lines += _broken(columns, widths, [str(column.cells[place]) for column in columns], "")
    return lines


def _longest_word(column: Column) -> int:
    every = (word for cell in (column.title, *column.cells) for word in str(cell).split())
    return max(map(cell_len, every), default=0)


def _broken(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], style: str) -> list[Text]:
    parts = [
        textwrap.wrap(cell, width, break_on_hyphens=False) if cell else []
        for cell, width in zip(cells, widths, strict=True)
    ]
    return [
        _line(columns, widths, [part[place] if place < len(part) else "" for part in parts], style)
        for place in range(max(map(len, parts)))
    ]


def left_out(columns: Sequence[Column], width: int) -> list[str]:
    """The titles of those that `table` has no room for."""
    kept = fitting(columns, width)
    return [column.title for column in columns if not any(column is one for one in kept)]


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Cell], style: str) -> Text:
    line = Text(style=style, no_wrap=True)
    for place, (column, width, cell) in enumerate(zip(columns, widths, cells, strict=True)):
        shown = cell if isinstance(cell, Text) else Text(cell)
        if shown.cell_len > width:
            shown = Text(shortened(shown.plain, width), style=shown.style)
        blank = " " * (width - shown.cell_len)
        line.append((GAP if place else "") + ("" if column.words else blank))
        line.append_text(shown).append(blank if column.words else "")
    line.rstrip()
    return line


def _taken(columns: Sequence[Column]) -> int:
    return sum(column.width + len(GAP) for column in columns)


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """What fits beside a first column that keeps at least a third of the width, if it needs it."""
    chosen = list(columns)
    least = min(chosen[0].width, max(_NARROWEST, width // 3))
    while least + _taken(chosen[1:]) > width:
        spare = [column for column in chosen[1:] if column.needed]
        if not spare:
            break
        least_needed = max(column.needed for column in spare)
        chosen = [column for column in chosen if column.needed < least_needed]
    return chosen


def stretched(make: Callable[[int], Sequence[Column]], width: int, *, least: int, most: int) -> list[Column]:
    """Columns with a bar that takes what the others leave of the line: `make` is told how many cells."""
    columns = make(least)
    kept = fitting(columns, width)
    left = width - kept[0].width - _taken(kept[1:])
    return list(make(min(most, least + max(0, left))))
