"""The two tables of a stage: its books, and its layers by phase. From the dictionary that `content` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from laptime.render.terminal.columns import Column, fitting, left_out, stretched, table
from laptime.render.terminal.fit import GAP, paragraph
from laptime.views import format, palette
from laptime.views.findings import longer_than_a_step
from laptime.views.layer_order import BY_TIME, largest

TOP_LAYERS = 15
_BAR = (5, 40)  # cells of the longest bar: at least, at most
_LAYER_BAR = (10, 24)
_NARROW = (70, 6)  # below this width, such a bar is better than none
_PHASES = ("forward", "backward", "update")

Layer = Mapping[str, Any]


def books(part: Mapping[str, Any], width: int) -> list[Text]:
    """Every account that took time, then the wall time they add up to.

    In the order of a step rather than by share: an account stands on the same line in every run, and the bars
    show which is largest.
    """
    rows = [
        one
        for one in part["accounts"]
        if not one["traced"] and one["seconds"] and (one["total_s"] or one["account"] == "unexplained")
    ]
    explained = f"explained {format.percent(part['explained_share'])}"

    def columns(bar: int) -> list[Column]:
        return _book_columns(rows, part["wall_s"], bar, explained if bar >= len(explained) else "")

    made = stretched(columns, width, least=_BAR[0], most=_BAR[1])
    lines = table(made, width, bold=[len(rows)])
    return lines if explained in lines[-1].plain else [*lines, Text(explained)]


def _book_columns(
    rows: Sequence[Mapping[str, Any]], wall: Mapping[str, Any], bar: int, explained: str
) -> list[Column]:
    every = [*(one["seconds"] for one in rows), wall]
    shares = [one["share"] for one in rows]
    names = [one["account"] for one in rows]
    paint = [*map(palette.of, names), ""]
    decimals = format.digits(wall["median"])

    def milliseconds(key: str) -> list[str]:
        return [format.milliseconds(one[key], decimals) for one in every]

    return [
        Column(title="account", cells=[*names, "wall time"], styles=paint, words=True),
        Column(title="median ms", cells=milliseconds("median")),
        Column(title="mean ms", cells=milliseconds("mean"), needed=2),
        Column(
            title="share",
            cells=[format.percent(share) for share in (*shares, 1.0)],
            styles=[*(palette.of(palette.word_of_share(share)) for share in shares), ""],
        ),
        Column(
            title="",
            cells=[*(format.bar(share, bar) for share in shares), explained],
            styles=paint,
            words=True,
            needed=1,
            room=bar,
        ),
    ]


def layers(
    part: Mapping[str, Any],
    width: int,
    *,
    most: int | None = TOP_LAYERS,
    unit: str = "layer",
    sort: str = BY_TIME,
) -> list[Text]:
    """Layers in the order asked for; the smallest are put together in a last row where there are too many."""
    shown, rest = largest(part["layers"], sort, most)
    make = _LayerColumns(shown, rest, unit=unit, narrow=width // 3)
    least, most_cells = (_NARROW[1] if width < _NARROW[0] else _LAYER_BAR[0]), _LAYER_BAR[1]
    columns = stretched(lambda bar: make.every(width, bar), width, least=least, most=most_cells)
    lines = table(columns, width)
    if any(column.words and not column.title for column in fitting(columns, width)):
        lines += _bar_legend(part["layers"])
    gone = [title.rstrip("*") for title in left_out(columns, width) if title.startswith(_PHASES)]
    if gone:
        lines += paragraph(f"no room for {', '.join(gone)}: a wider terminal or --json has them", width)
    return lines


def marked_steps(part: Mapping[str, Any], unit: str) -> str:
    """Which steps the layers' times are from, and whether these took longer; empty where it is all."""
    counts = [one[phase]["count"] for one in part["layers"] for phase in _PHASES if one[phase]]
    wall = part["wall_s"]
    if not counts or not wall:
        return ""
    if part["layers_first"]:
        return f"{unit} times are of the first step alone, which warms up: no other one had layer marks"
    steps = wall["count"]
    marked = min(steps, round(max(counts) / part["ranks"]))
    told = f"{unit} times are medians over {marked:,} of {steps:,} steps, those with layer marks"
    compute = sum(one["total_s"] or 0.0 for one in part["layers"])
    if longer_than_a_step(part):
        longer = f"{format.milliseconds(compute)} ms, more than the {format.milliseconds(wall['median'])} ms"
        return f"{told}; they add up to {longer} of a median step: trust the shares, not the milliseconds"
    return told if marked < steps else ""


def _bar_legend(every: Sequence[Layer]) -> Iterator[Text]:
    """Which part of a bar is which phase; nothing where there is one phase only."""
    found = [phase for phase in _PHASES if any(one[phase] for one in every)]
    if len(found) > 1:
        parts = [
            Text.assemble((format.FILLS[phase], palette.of(phase)), " ", (phase, palette.of(phase)))
            for phase in found
        ]
        yield Text(GAP).join(parts)


class _LayerColumns:
    """Columns over the layers that are shown, with a last cell for the rest put together."""

    def __init__(self, shown: Sequence[Layer], rest: Sequence[Layer], *, unit: str, narrow: int) -> None:
        self._shown, self._rest, self._unit, self._narrow = shown, rest, unit, narrow
        self._longest_s = max(one["total_s"] or 0.0 for one in shown)
        self._decimals = format.digits(self._longest_s)

    def every(self, width: int, bar: int) -> list[Column]:
        """All columns. Where the phases have no room for their numbers, the bar stays and shows them."""
        numbers = [
            self.names(),
            *self.phase("forward", needed=2),
            *self.phase("backward", needed=2),
            *self.phase("update", needed=3),
            self.summed("total", "total_s", self.milliseconds),
        ]
        share = self.summed("share", "share", format.percent, styles=self._share_styles())
        roomy = len(fitting([*numbers, share], width)) > len(numbers)
        return [
            *numbers,
            *self.known("±", "spread", _half, needed=5),
            share,
            self.bars(bar, needed=4 if roomy else 1),
            *self.known("busy", "busy_s", self.milliseconds, needed=6),
            *self.known("idle", "idle_s", self.milliseconds, needed=6, style=palette.of("idle")),
            *self.known("peak MiB", "memory_bytes", format.mebibytes, needed=7),
            *self.known("parameters", "parameters", "{:,}".format, needed=8),
            *self.known("kind", "kind", format.name, needed=9, words=True),
        ]

    def milliseconds(self, seconds: float | None) -> str:
        """Seconds with the decimals that suit the whole table."""
        return format.milliseconds(seconds, self._decimals)

    def bars(self, width: int, *, needed: int) -> Column:
        """Each layer's phases as one bar; the largest layer's is as long as can be.

        The rest has none: many layers together may be longer than the longest.
        """
        cells = [self._bar(one, width) for one in self._shown]
        return self._column("", cells, "", words=True, needed=needed, room=width)

    def _bar(self, layer: Layer, width: int) -> Text:
        parts = {phase: layer[phase]["median"] for phase in _PHASES if layer[phase]}
        found = format.stacked(parts, self._longest_s, width)
        return Text.assemble(*((fill, palette.of(phase)) for phase, fill in found))

    def _share_styles(self) -> list[str]:
        return [palette.of(palette.word_of_layer_share(one["share"])) for one in self._shown] + [""] * bool(
            self._rest
        )

    def names(self) -> Column:
        """The layers' names, and how many are in the rest: a name may be cut where a number may not."""
        more = f"… and {format.plural(len(self._rest), f'more {self._unit}')}"
        more = more if len(more) <= self._narrow else f"… {len(self._rest):,} more"
        return self._column(self._unit, [label(one) for one in self._shown], more, words=True)

    def summed(self, title: str, key: str, write: Callable[[Any], str], **how: Any) -> Column:
        """A number that the rest has together."""
        together = sum(one[key] or 0.0 for one in self._rest)
        return self._column(title, [write(one[key]) for one in self._shown], write(together), **how)

    def known(self, title: str, key: str, write: Callable[[Any], str], **how: Any) -> list[Column]:
        """Something that not every layer has; no column where none has it."""
        values = [one[key] if one["module"] or key not in _OF_MODULES else None for one in self._shown]
        cells = [format.UNKNOWN if value is None else write(value) for value in values]
        return [self._column(title, cells, format.UNKNOWN, **how)] if set(values) - {None} else []

    def phase(self, name: str, *, needed: int) -> list[Column]:
        """The medians of one phase, its title marked where they are not measured."""
        every = [one[name] for one in (*self._shown, *self._rest) if one[name]]
        if not every:
            return []
        star = "*" if any(one["how"] != "measured" for one in every) else ""
        cells = [self.milliseconds(one[name] and one[name]["median"]) for one in self._shown]
        together = self.milliseconds(sum(one[name]["median"] for one in self._rest if one[name]))
        return [self._column(name + star, cells, together, needed=needed, style=palette.of(name))]

    def _column(self, title: str, cells: Sequence[str | Text], last: str, **how: Any) -> Column:
        return Column(title=title, cells=[*cells, last] if self._rest else cells, **how)


_OF_MODULES = ("parameters", "kind")  # the loss and what is in no layer have neither


def _half(spread: float) -> str:
    """Half of the interquartile range, which is what `±` means here."""
    return f"{spread * 50:.0f} %" if spread < 2 else ">100 %"


def label(layer: Layer) -> str:
    """A layer's name and what is special about it."""
    special = ["compiled"] * bool(layer["compiled"]) + ["frozen"] * (layer["trainable"] is False)
    return format.name(layer["layer"]) + (f" ({', '.join(special)})" if special else "")
