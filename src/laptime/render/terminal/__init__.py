"""What a terminal shows: the console, and text that fits its width."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import IO, Any, NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from laptime.files.text import visible
from laptime.views import format

GAP = "  "
WIDEST = 140  # nothing here needs more, and longer lines are hard to follow
_LONGEST = 4000  # characters of a text that are looked at; no terminal shows more of a cell
_UNITS = re.compile(r"(?<=\d) (?=(?:ms|s|MiB|samples/s)\b|%)")
_UNBROKEN = "\N{NO-BREAK SPACE}"  # which textwrap does not break at


class TerminalConsole(Console):
    """A console that leaves a broken pipe to its caller, where `rich` would end the process with status 1."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Show what a terminal would act on: escapes and bidirectional marks that came from a file."""
        for thing in objects:
            if isinstance(thing, Text):
                thing.plain = visible(thing.plain)
        super().print(*(visible(thing) if isinstance(thing, str) else thing for thing in objects), **options)

    def on_broken_pipe(self) -> NoReturn:
        """Let the caller know."""
        raise BrokenPipeError


def console(file: IO[str] | None = None, *, colour: bool | None = None) -> Console:
    """Where tables go: standard output unless told otherwise. Takes text as it is.

    Colours on terminals that have them, unless NO_COLOR is set, and elsewhere where FORCE_COLOR is; `colour`
    overrides both.
    """
    return TerminalConsole(
        file=file or sys.stdout,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=colour or None,
        color_system="standard" if colour else "auto",  # sixteen colours are all that is used
        no_color=None if colour is None else not colour,
    )


def print_lines(lines: Iterable[Text], to: Console) -> None:
    """Lines that are no wider than they should be already; in plain characters where there are no others."""
    for line in lines:
        if to.options.ascii_only:
            line.plain = format.in_ascii(line.plain)
            line.rstrip()
        to.print(line, no_wrap=True, overflow="ignore", crop=False)


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


def broken(text: str, width: int, bullet: str = "") -> list[str]:
    """`text` over lines of at most `width` cells, indented under its bullet; a very long one is cut."""
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    indent = " " * len(bullet)
    return textwrap.wrap(cut, width, initial_indent=bullet, subsequent_indent=indent, break_on_hyphens=False)


def paragraph(text: str, width: int, *, bullet: str = "", style: str = "") -> list[Text]:
    """A sentence over as many lines as it needs. A number stays with its unit."""
    lines = broken(_UNITS.sub(_UNBROKEN, text), max(width, 20), bullet)
    return [Text(line.replace(_UNBROKEN, " "), style=style, no_wrap=True) for line in lines]


def bullets(texts: Iterable[str], width: int, bullet: str = "- ") -> list[Text]:
    """Each text as a paragraph of its own."""
    return [line for text in texts for line in paragraph(text, width, bullet=bullet)]


def facts(given: Sequence[str], width: int, *, style: str = "") -> list[Text]:
    """Facts on one line, with a dot between them; a line ends only between two facts."""
    lines: list[str] = []
    for fact in given:
        if lines and cell_len(lines[-1]) + 3 + cell_len(fact) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines.append(fact)
    return [part for line in lines for part in paragraph(line, width, style=style)]
