"""Tables in a terminal: the least needed columns are left out until the rest fits the width.

Rows are plain lines, without the blanks at their ends that `rich.table` would leave in what is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from rich.cells import cell_len
from rich.text import Text

from laptime.files.text import one_line
from laptime.render.terminal import GAP, broken, bullets, paragraph, shortened
from laptime.views import format, palette
from laptime.views.table import BarPart, Cell, Column, Table, text_of

_NARROWEST = 8
_NARROW_TERMINAL = 70
_SHORTEST_BAR = {True: 6, False: 10}  # in a narrow terminal, and otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strip:
    """A column as it is laid out: its own cells, or the bars beside them."""

    column: Column
    width: int
    priority: int
    title: str = ""
    cells: Sequence[Text] = ()
    bars: Sequence[Sequence[BarPart]] = ()


def table_lines(table: Table, width: int) -> list[Text]:
    """The table in lines no wider than `width`: title, rows, what the columns mean, notes."""
    strips = _strips(table, width)
    lines = [Text(one_line(table.title), style="bold", no_wrap=True)] if table.title else []
    if any(column.narrows for column in table.columns):
        return [*lines, *_narrowed(table, strips, width), *bullets(table.notes, width, "  ")]
    shown = _stretched(_fitting(strips, width), width)
    first = max(_NARROWEST, width - _taken(shown[1:]))
    widths = [min(first, shown[0].width), *(strip.width for strip in shown[1:])]
    titles = [Text(strip.title, style="" if strip.bars else palette.of(strip.column.word)) for strip in shown]
    lines.append(_line(shown, widths, titles, "bold"))
    for row in range(len(table.rows)):
        cells = [strip.cells[row] for strip in shown]
        lines.append(_line(shown, widths, cells, "bold" if table.is_bold(row) else ""))
    return [*lines, *_bar_legend(shown), *bullets([*_meanings(strips, shown), *table.notes], width, "  ")]


def left_out(table: Table, width: int) -> list[str]:
    """The titles of the columns that a terminal of this width has no room for."""
    shown = {id(strip.column) for strip in _fitting(_strips(table, width), width) if not strip.bars}
    return [column.title for column in table.columns if id(column) not in shown]


def _strips(table: Table, width: int) -> list[_Strip]:
    strips = []
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        texts = [
            Text(one_line(text_of(cell)), style=palette.of(cell.word) if isinstance(cell, Cell) else "")
            for cell in cells
        ]
        title = one_line(column.title)
        longest = max(cell_len(title), *(text.cell_len for text in texts), 0)
        priority = column.priority if place else 0
        strips.append(_Strip(column=column, width=longest, priority=priority, title=title, cells=texts))
        bars = [cell.bar if isinstance(cell, Cell) else () for cell in cells]
        if any(bars):
            least = _SHORTEST_BAR[width < _NARROW_TERMINAL]
            strips.append(_Strip(column=column, width=least, priority=column.bar_priority, bars=bars))
    return strips


def _fitting(strips: Sequence[_Strip], width: int) -> list[_Strip]:
    """What fits beside a first column that keeps at least a third of the width, if it needs it.

    Bars are left out in their turn only where that saves the columns after them: a bar of phases stands for
    their numbers.
    """
    left = width - min(strips[0].width, max(_NARROWEST, width // 3)) - _taken(strips[1:])
    groups: dict[int, list[_Strip]] = {}
    for strip in strips:
        groups.setdefault(strip.priority, []).append(strip)
    groups.pop(0)
    gone: set[int] = set()
    for _, group in sorted(groups.items(), reverse=True):
        if left >= 0:
            break
        enough = left + _taken(group) >= 0
        going = [strip for strip in group if enough or not strip.bars]
        left += _taken(going)
        gone |= {id(strip) for strip in going}
    return [strip for strip in strips if id(strip) not in gone and (left >= 0 or not strip.bars)]


def _stretched(strips: Sequence[_Strip], width: int) -> list[_Strip]:
    """Bars take what the other columns leave of the line."""
    left = max(0, width - strips[0].width - _taken(strips[1:]))
    made = []
    for strip in strips:
        if not strip.bars:
            made.append(strip)
            continue
        cells = max(strip.width, min(strip.column.longest_bar, strip.width + left))
        left -= cells - strip.width
        made.append(replace(strip, width=cells, cells=[_bar(bar, cells) for bar in strip.bars]))
    return made


def _bar(parts: Sequence[BarPart], width: int) -> Text:
    """A bar of eighths of a character, or of several parts, each with a fill of its own.

    What is too short for a character, but not nothing, is a thin line.
    """
    if len(parts) == 1:
        return Text(format.bar(parts[0].share, width), style=palette.of(parts[0].word))
    drawn, reached, total = Text(), 0, 0.0
    for part in parts:
        total += max(0.0, part.share)
        end = round(min(1.0, total) * width)
        drawn.append(palette.fill(part.word) * (end - reached), style=palette.of(part.word))
        reached = end
    if not reached and total > 0:
        longest = max(parts, key=lambda part: part.share)
        return Text(format.THIN, style=palette.of(longest.word))
    return drawn


def _bar_legend(shown: Sequence[_Strip]) -> list[Text]:
    """Which part of a bar is which, where bars have several."""
    lines = []
    for strip in shown:
        words = dict.fromkeys(part.word for bar in strip.bars if len(bar) > 1 for part in bar)
        parts = [Text(f"{palette.fill(word)} {word}", style=palette.of(word)) for word in words]
        lines += [Text(GAP).join(parts)] if parts else []
    return lines


def _meanings(strips: Sequence[_Strip], shown: Sequence[_Strip]) -> list[str]:
    """What the shown columns mean, after the names of those that had no room."""
    kept = {id(strip.column) for strip in shown if not strip.bars}
    own = [strip.column for strip in strips if not strip.bars]
    gone = [column.title for column in own if id(column) not in kept and not column.optional and column.title]
    told = [f"no room for {', '.join(gone)}: a wider terminal or --json has them"] if gone else []
    # Columns may share a meaning.
    meanings = (column.meaning for column in own if id(column) in kept and column.meaning)
    return [*told, *dict.fromkeys(meanings)]


def _narrowed(table: Table, strips: Sequence[_Strip], width: int) -> list[Text]:
    """Nothing is left out: cells take several lines, each column down to its longest word at first."""
    own = [strip for strip in strips if not strip.bars]
    widths = [strip.width for strip in own]
    giving = sorted(
        (place for place, strip in enumerate(own) if strip.column.narrows),
        key=lambda place: own[place].column.narrows,
    )
    for place in (*giving, giving[-1]):
        over = sum(widths) + len(GAP) * (len(widths) - 1) - width
        if over > 0:
            texts = (own[place].title, *(cell.plain for cell in own[place].cells))
            longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
            lowest = longest if widths[place] > longest else _NARROWEST
            widths[place] = min(widths[place], max(lowest, widths[place] - over))
    lines = [*_broken(own, widths, [Text(strip.title) for strip in own], "bold")]
    for row in range(len(table.rows)):
        style = "bold" if table.is_bold(row) else ""
        lines += _broken(own, widths, [strip.cells[row] for strip in own], style)
    return lines


def _broken(
    strips: Sequence[_Strip], widths: Sequence[int], cells: Sequence[Text], style: str
) -> Iterator[Text]:
    parts = [broken(cell.plain, width) for cell, width in zip(cells, widths, strict=True)]
    for line in zip_longest(*parts, fillvalue=""):
        texts = [Text(part, style=cell.style) for part, cell in zip(line, cells, strict=True)]
        yield _line(strips, widths, texts, style)


def _line(strips: Sequence[_Strip], widths: Sequence[int], cells: Sequence[Text], style: str) -> Text:
    line = Text(style=style, no_wrap=True)
    for place, (strip, width, cell) in enumerate(zip(strips, widths, cells, strict=True)):
        text = cell if cell.cell_len <= width else Text(shortened(cell.plain, width), style=cell.style)
        blank, words = " " * (width - text.cell_len), strip.bars or strip.column.words
        line.append((GAP if place else "") + ("" if words else blank))
        line.append_text(text).append(blank if words else "")
    line.rstrip()
    return line


def _taken(strips: Sequence[_Strip]) -> int:
    return sum(strip.width + len(GAP) for strip in strips)


def value_lines(rows: Sequence[tuple[str, str, str, str]], width: int | None = None) -> Iterator[Text]:
    """Every value of a configuration: its key, what it is, why, and what it means; nothing is shortened.

    Where lines would be wider than the terminal, the meaning stands below its value. `width` is None where
    there is no terminal.
    """
    cells = [tuple(map(one_line, row)) for row in (("key", "value", "why", "meaning"), *rows)]
    widths = [max(cell_len(row[place]) for row in cells) for place in range(3)]
    longest = sum(widths) + 3 * len(GAP) + max(cell_len(row[3]) for row in cells)
    below = width is not None and longest > width
    for place, row in enumerate(cells):
        padded = [cell + " " * (size - cell_len(cell)) for cell, size in zip(row[:3], widths, strict=True)]
        line = GAP.join(padded if below else [*padded, row[3]])
        yield Text(line.rstrip(), style="" if place else "bold", no_wrap=True)
        if below and place:
            yield from paragraph(row[3], width or 0, bullet="    ", style="dim")
