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
    wall = part["wall_s"]
    decimals = words.digits(wall["median"])
    every = [one["seconds"] for one in rows] + [wall]
    bars = [words.bar(one["share"], _BAR, ascii_only=ascii_only) for one in rows]
    explained = f"explained {words.percent(part['explained_share'])}"
    return table(
        [
            Column(title="account", cells=[*(one["account"] for one in rows), "wall time"], words=True),
            Column(title="median ms", cells=[words.milliseconds(one["median"], decimals) for one in every]),
            Column(title="mean ms", cells=[words.milliseconds(one["mean"], decimals) for one in every], needed=1),
            Column(title="share", cells=[words.percent(share) for share in (*(one["share"] for one in rows), 1.0)]),
            Column(title="", cells=[*bars, explained], words=True),
        ],
        width,
        bold=[len(rows)],
    )


def layers(part: Mapping[str, Any], width: int, *, most: int | None = TOP_LAYERS, ascii_only: bool = False) -> list[Text]:
    """Layers in network order; the smallest are put together in one row where there are more than `most`."""
    shown, rest = _largest(part["layers"], most)
    decimals = words.digits(max(one["total_s"] for one in shown))

    def milliseconds(seconds: float | None) -> str:
        return words.milliseconds(seconds, decimals)

    def total(key: str) -> float:
        return sum(one[key] or 0.0 for one in rest)

    def column(title: str, cells: Sequence[str], last: str = words.UNKNOWN, **how: Any) -> Column:
        return Column(title=title, cells=[*cells, last] if rest else cells, **how)

    def known(title: str, key: str, write: Callable[[Any], str], **how: Any) -> list[Column]:
        cells = [write(one[key]) for one in shown]
        return [column(title, cells, **how)] if any(one[key] is not None for one in shown) else []

    def phase(name: str, needed: int) -> list[Column]:
        medians = [one[name] and one[name]["median"] for one in shown]
        star = "*" if any(one[name] and one[name]["how"] != "measured" for one in part["layers"]) else ""
        last = milliseconds(sum(one[name]["median"] for one in rest if one[name]))
        cells = [milliseconds(median) for median in medians]
        return [column(name + star, cells, last, needed=needed)] if any(medians) else []

    bars = [words.bar(one["share"], _SMALL_BAR, ascii_only=ascii_only) for one in shown]
    chosen = [
        column("layer", [label(one) for one in shown], f"… and {words.plural(len(rest), 'more layer')}", words=True),
        *phase("forward", 2),
        *phase("backward", 2),
        *phase("update", 3),
        column("total", [milliseconds(one["total_s"]) for one in shown], milliseconds(total("total_s"))),
        *known("±", "spread", _half, needed=5),
        column("share", [words.percent(one["share"]) for one in shown], words.percent(total("share"))),
        column("", bars, words.bar(total("share"), _SMALL_BAR, ascii_only=ascii_only), words=True, needed=4),
        *known("busy", "busy_s", milliseconds, needed=6),
        *known("idle", "idle_s", milliseconds, needed=7),
        *known("peak MiB", "memory_bytes", words.mebibytes, needed=8),
        column("parameters", [_parameters(one) for one in shown], needed=9),
        column("kind", [words.name(one["kind"] or words.UNKNOWN) for one in shown], words=True, needed=10),
    ]
    return table(chosen, width)


def _half(spread: float | None) -> str:
    """Half of the interquartile range: what `±` means here. Beyond the number itself it says no more."""
    if spread is None:
        return words.UNKNOWN
    return f"{spread * 50:.0f} %" if spread < 2 else ">100 %"


def _parameters(layer: Layer) -> str:
    return f"{layer['parameters']:,}" if layer["module"] else words.UNKNOWN


def _largest(every: Sequence[Layer], most: int | None) -> tuple[list[Layer], list[Layer]]:
    """(shown, put together). One row too many is shown: a row that says so would be as long."""
    if most is None or len(every) <= most + 1:
        return list(every), []
    order = sorted(range(len(every)), key=lambda place: -every[place]["total_s"])
    return [every[place] for place in sorted(order[:most])], [every[place] for place in order[most:]]


def label(layer: Layer) -> str:
    """A layer's name and what is special about it."""
    special = [word for word, applies in _SPECIAL.items() if applies(layer)]
    return words.name(layer["layer"]) + (f" ({', '.join(special)})" if special else "")


_SPECIAL: dict[str, Callable[[Layer], bool]] = {
    "compiled": lambda layer: bool(layer["compiled"]),
    "frozen": lambda layer: layer["trainable"] is False,
}
