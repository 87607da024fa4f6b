"""The two tables of a stage: its books, and its layers by phase. From the dictionary that `content` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text

from laptime.report import words
from laptime.report.columns import Column, table

TOP_LAYERS = 15
_BAR = 20
_SMALL_BAR = 8

Layer = Mapping[str, Any]


def books(part: Mapping[str, Any], width: int, *, ascii_only: bool = False) -> list[Text]:
    """Every account that took time, then the wall time they add up to."""
    rows = [
        one
        for one in part["accounts"]
        if not one["traced"] and one["seconds"] and (one["total_s"] or one["account"] == "unexplained")
    ]
    every = [*(one["seconds"] for one in rows), part["wall_s"]]
    shares = [one["share"] for one in rows]
    decimals = words.digits(part["wall_s"]["median"])

    def milliseconds(key: str) -> list[str]:
        return [words.milliseconds(one[key], decimals) for one in every]

    bars = [words.bar(share, _BAR, ascii_only=ascii_only) for share in shares]
    explained = f"explained {words.percent(part['explained_share'])}"
    columns = [
        Column(title="account", cells=[*(one["account"] for one in rows), "wall time"], words=True),
        Column(title="median ms", cells=milliseconds("median")),
        Column(title="mean ms", cells=milliseconds("mean"), needed=2),
        Column(title="share", cells=[words.percent(share) for share in (*shares, 1.0)]),
        Column(title="", cells=[*bars, explained], words=True, needed=1),
    ]
    return table(columns, width, bold=[len(rows)])


def layers(
    part: Mapping[str, Any],
    width: int,
    *,
    most: int | None = TOP_LAYERS,
    unit: str = "layer",
    ascii_only: bool = False,
) -> list[Text]:
    """Layers in network order; the smallest are put together in one row where there are more than `most`."""
    shown, rest = _largest(part["layers"], most)
    make = _LayerColumns(shown, rest, unit=unit, ascii_only=ascii_only)
    return table(
        [
            make.names(),
            *make.phase("forward", needed=2),
            *make.phase("backward", needed=2),
            *make.phase("update", needed=3),
            make.summed("total", "total_s", make.milliseconds),
            *make.known("±", "spread", _half, needed=5),
            make.summed("share", "share", words.percent),
            make.summed("", "share", make.bar, needed=4, words=True),
            *make.known("busy", "busy_s", make.milliseconds, needed=6),
            *make.known("idle", "idle_s", make.milliseconds, needed=6),
            *make.known("peak MiB", "memory_bytes", words.mebibytes, needed=7),
            *make.known("parameters", "parameters", "{:,}".format, needed=8),
            *make.known("kind", "kind", words.name, needed=9, words=True),
        ],
        width,
    )


class _LayerColumns:
    """Columns over the layers that are shown, with a last cell for the rest put together."""

    def __init__(self, shown: Sequence[Layer], rest: Sequence[Layer], *, unit: str, ascii_only: bool) -> None:
        self._shown, self._rest, self._unit, self._ascii_only = shown, rest, unit, ascii_only
        self._decimals = words.digits(max(one["total_s"] for one in shown))

    def milliseconds(self, seconds: float | None) -> str:
        """Seconds with the decimals that suit the whole table."""
        return words.milliseconds(seconds, self._decimals)

    def bar(self, share: float | None) -> str:
        """A share as a small bar."""
        return words.bar(share, _SMALL_BAR, ascii_only=self._ascii_only)

    def names(self) -> Column:
        """The layers' names, and how many are in the rest."""
        more = f"… and {words.plural(len(self._rest), f'more {self._unit}')}"
        return self._column(self._unit, [label(one) for one in self._shown], more, words=True)

    def summed(self, title: str, key: str, write: Callable[[Any], str], **how: Any) -> Column:
        """A number that the rest has together."""
        together = sum(one[key] or 0.0 for one in self._rest)
        return self._column(title, [write(one[key]) for one in self._shown], write(together), **how)

    def known(self, title: str, key: str, write: Callable[[Any], str], **how: Any) -> list[Column]:
        """Something that not every layer has; no column where none has it."""
        values = [one[key] if one["module"] or key not in _OF_MODULES else None for one in self._shown]
        cells = [words.UNKNOWN if value is None else write(value) for value in values]
        return [self._column(title, cells, words.UNKNOWN, **how)] if set(values) - {None} else []

    def phase(self, name: str, *, needed: int) -> list[Column]:
        """The medians of one phase, its title marked where they are not measured."""
        every = [one[name] for one in (*self._shown, *self._rest) if one[name]]
        if not every:
            return []
        star = "*" if any(one["how"] != "measured" for one in every) else ""
        cells = [self.milliseconds(one[name] and one[name]["median"]) for one in self._shown]
        together = self.milliseconds(sum(one[name]["median"] for one in self._rest if one[name]))
        return [self._column(name + star, cells, together, needed=needed)]

    def _column(self, title: str, cells: Sequence[str], last: str, **how: Any) -> Column:
        return Column(title=title, cells=[*cells, last] if self._rest else cells, **how)


_OF_MODULES = ("parameters", "kind")  # the loss and what is in no layer have neither


def _half(spread: float) -> str:
    """Half of the interquartile range, which is what `±` means here."""
    return f"{spread * 50:.0f} %" if spread < 2 else ">100 %"


def _largest(every: Sequence[Layer], most: int | None) -> tuple[list[Layer], list[Layer]]:
    """(shown, put together). One row too many is shown: the row that stands for it would be as long."""
    if most is None or len(every) <= most + 1:
        return list(every), []
    order = sorted(range(len(every)), key=lambda place: -every[place]["total_s"])
    return [every[place] for place in sorted(order[:most])], [every[place] for place in order[most:]]


def label(layer: Layer) -> str:
    """A layer's name and what is special about it."""
    special = ["compiled"] * bool(layer["compiled"]) + ["frozen"] * (layer["trainable"] is False)
    return words.name(layer["layer"]) + (f" ({', '.join(special)})" if special else "")
