"""Tables in a terminal: the least needed columns are left out until the rest fits the width.

Rows are plain lines, without the blanks at their ends that `rich.table` would leave in what is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.text import Text

from laptime.render.terminal.fit import GAP, broken, paragraph, shortened
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
    words: bool
    priority: int
    title: str = ""
    cells: Sequence[Text] = ()
    bars: Sequence[Sequence[BarPart]] = ()


def table_lines(table: Table, width: int) -> list[Text]:
    """The table in lines no wider than `width`: title, rows, what the columns mean, notes."""
    strips = _strips(table, width)
    lines = [Text(table.title, style="bold", no_wrap=True)] if table.title else []
    if any(column.narrows for column in table.columns):
        return [*lines, *_narrowed(table, strips, width), *_notes(table.notes, width)]
    shown = _stretched(_fitting(strips, width), width)
    first = max(_NARROWEST, width - _taken(shown[1:]))
    widths = [min(first, shown[0].width), *(strip.width for strip in shown[1:])]
    titles = [Text(strip.title, style="" if strip.bars else palette.of(strip.column.word)) for strip in shown]
    lines.append(_line(shown, widths, titles, "bold"))
    for row in range(len(table.rows)):
        cells = [strip.cells[row] for strip in shown]
        lines.append(_line(shown, widths, cells, "bold" if table.is_bold(row) else ""))
    return [*lines, *_bar_legend(shown), *_notes([*_meanings(strips, shown), *table.notes], width)]


def left_out(table: Table, width: int) -> list[str]:
    """The titles of the columns that a terminal of this width has no room for."""
    shown = {id(strip.column) for strip in _fitting(_strips(table, width), width) if not strip.bars}
    return [column.title for column in table.columns if id(column) not in shown]


def _strips(table: Table, width: int) -> list[_Strip]:
    strips = []
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        texts = [_text(cell) for cell in cells]
        strips.append(
            _Strip(
                column=column,
                cells=texts,
                title=column.title,
                width=max(cell_len(column.title), *(text.cell_len for text in texts), 0),
                words=column.words,
                priority=column.priority if place else 0,
            )
        )
        bars = [cell.bar if isinstance(cell, Cell) else () for cell in cells]
        if any(bars):
            least = _SHORTEST_BAR[width < _NARROW_TERMINAL]
            strips.append(
                _Strip(column=column, width=least, words=True, priority=column.bar_priority, bars=bars)
            )
    return strips


def _text(cell: str | Cell) -> Text:
    return Text(text_of(cell), style=palette.of(cell.word) if isinstance(cell, Cell) else "")


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
        if words:
            parts = [
                Text.assemble((palette.fill(word), palette.of(word)), " ", (word, palette.of(word)))
                for word in words
            ]
            lines.append(Text(GAP).join(parts))
    return lines


def _meanings(strips: Sequence[_Strip], shown: Sequence[_Strip]) -> list[str]:
    """What the shown columns mean, after the names of those that had no room."""
    kept = {id(strip.column) for strip in shown if not strip.bars}
    own = [strip.column for strip in strips if not strip.bars]
    gone = [column.title for column in own if id(column) not in kept and not column.optional and column.title]
    told = [f"no room for {', '.join(gone)}: a wider terminal or --json has them"] if gone else []
    return told + [column.meaning for column in own if id(column) in kept and column.meaning]


def _notes(notes: Sequence[str], width: int) -> list[Text]:
    return [line for note in notes for line in paragraph(note, width, bullet="  ")]


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
            longest = _longest_word(own[place])
            lowest = longest if widths[place] > longest else _NARROWEST
            widths[place] = min(widths[place], max(lowest, widths[place] - over))
    lines = _broken(own, widths, [Text(strip.title) for strip in own], "bold")
    for row in range(len(table.rows)):
        style = "bold" if table.is_bold(row) else ""
        lines += _broken(own, widths, [strip.cells[row] for strip in own], style)
    return lines


def _longest_word(strip: _Strip) -> int:
    texts = (strip.title, *(cell.plain for cell in strip.cells))
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def _broken(strips: Sequence[_Strip], widths: Sequence[int], cells: Sequence[Text], style: str) -> list[Text]:
    parts = [broken(cell.plain, width) for cell, width in zip(cells, widths, strict=True)]
    return [
        _line(
            strips,
            widths,
            [
                Text(part[place], style=cell.style) if place < len(part) else Text()
                for part, cell in zip(parts, cells, strict=True)
            ],
            style,
        )
        for place in range(max(map(len, parts), default=0))
    ]


def _line(strips: Sequence[_Strip], widths: Sequence[int], cells: Sequence[Text], style: str) -> Text:
    line = Text(style=style, no_wrap=True)
    for place, (strip, width, cell) in enumerate(zip(strips, widths, cells, strict=True)):
        text = cell if cell.cell_len <= width else Text(shortened(cell.plain, width), style=cell.style)
        blank = " " * (width - text.cell_len)
        line.append((GAP if place else "") + ("" if strip.words else blank))
        line.append_text(text).append(blank if strip.words else "")
    line.rstrip()
    return line


def _taken(strips: Sequence[_Strip]) -> int:
    return sum(strip.width + len(GAP) for strip in strips)
