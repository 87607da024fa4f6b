"""What a page holds, as plain values. Every string is text: the templates escape all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laptime.views.figures.figure import Figure
from laptime.views.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number that counts, what it is of, and what to think of it."""

    name: str
    value: str
    note: str = ""
    tone: str = ""  # good, fair or bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page with a title of its own."""

    name: str
    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    bullets: Sequence[str] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.sentences or self.figures or self.tables or self.bullets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that is shown of a run, a comparison or a prediction."""

    title: str
    subtitle: str = ""
    status: str = ""
    about: Sequence[str] = ()
    warnings: Sequence[str] = ()  # what makes the numbers below incomplete
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = ()
