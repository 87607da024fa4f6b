"""A table as a plain value. The terminal and the page each have one renderer for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laptime.views.palette import word_of_share


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """A part of a bar: its share of the bar's full length, and the palette word that gives its colour."""

    share: float
    word: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Text with a colour, a bar beside it or a link. A cell that has none of these is a plain string."""

    text: str
    word: str = ""  # of the palette, for the text
    bar: Sequence[BarPart] = ()
    link: str = ""  # within the dashboard


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How a column is shown. The first of a table is never left out, only shortened."""

    title: str
    words: bool = False  # set to the left, where numbers are set to the right
    priority: int = 0  # 0: always shown; otherwise the highest goes first, with all that share it
    word: str = ""  # of the palette, for the title
    meaning: str = ""  # a legend, told where the column is shown
    optional: bool = False  # left out of a narrow terminal without a note
    narrows: int = 0  # 1 gives way first, then 2, …: cells take several lines, and no column is left out
    bar_priority: int = 1  # of the bars beside its cells, as `priority`
    longest_bar: int = 24  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under titles. `name` is unique in a page. One without rows is not shown."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]
    title: str = ""
    folded: bool = False  # a page shows it when it is opened
    total: bool = False  # the last row is the sum of the others
    bold: Sequence[int] = ()  # rows that stand out
    notes: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def head(self) -> tuple[str, ...]:
        """The titles of the columns."""
        return tuple(column.title for column in self.columns)

    def is_bold(self, row: int) -> bool:
        """Whether a row stands out, as the sum does."""
        return row in self.bold or (self.total and row == len(self.rows) - 1)


Cells = tuple[Column, Sequence[str | Cell]]
"""A whole column with its cells."""


def table_of(
    name: str,
    columns: Sequence[Cells],
    *,
    title: str = "",
    bold: Sequence[int] = (),
    notes: Sequence[str] = (),
) -> Table:
    """A table from whole columns."""
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    heads = [column for column, _ in columns]
    return Table(name=name, title=title, columns=heads, rows=rows, bold=bold, notes=notes)


def titled(titles: Sequence[str], *, words: int = 1) -> list[Column]:
    """Columns that have a title alone; the first `words` of them hold words, the others numbers."""
    return [Column(title=title, words=place < words) for place, title in enumerate(titles)]


def share_cell(text: str, share: float | None, word: str = "") -> Cell:
    """A share with its bar in the colour of `word`, its text the louder the larger it is."""
    bar = () if share is None else (BarPart(share=share, word=word),)
    return Cell(text=text, word=word_of_share(share), bar=bar)


def text_of(cell: str | Cell) -> str:
    """The text of a cell."""
    return cell if isinstance(cell, str) else cell.text
