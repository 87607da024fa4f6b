"""A comparison in the terminal, from the dictionary `compare` makes. A verdict is a word, not a colour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from laptime.render.terminal.columns import Column, table
from laptime.render.terminal.fit import paragraph
from laptime.render.terminal.run_text import device_lines, print_lines, step_of
from laptime.views import format
from laptime.views.layers_by_device import DeviceSeconds
from laptime.views.run_view import NOUNS

_INDENT = 2
_WIDEST = 140
TOP_LAYERS = 15
Row = Mapping[str, Any]


def show(found: Mapping[str, Any], to: Console, *, every_layer: bool = False) -> None:
    """Print all there is to say about two groups of runs."""
    print_lines(_lines(found, min(to.width, _WIDEST), every_layer), to)


def _lines(found: Mapping[str, Any], width: int, every_layer: bool) -> Iterator[Text]:
    for side in "ab":
        yield Text(f"{side.upper()}  {_group(found[side])}", style="bold")
    inner = width - _INDENT
    for stage in NOUNS:
        part = found[stage]
        if part:
            yield from (Text(), Text(f"A {step_of(part['noun'])}, B against A", style="bold"))
            yield from map(_indented, _pace(part, inner))
            yield from _titled(f"Accounts, in {_unit(part)}", _accounts(part, inner))
            title = f"{part['unit'].capitalize()}s, in {_unit(part)}"
            yield from _titled(title, _layers(part, inner, every_layer))
            yield from _by_rank(part, inner)
    yield from _titled("What was learned, in the last epoch", _results(found["results"], inner))
    if found["profiling"]:
        yield from _titled("Profiling", paragraph(_profiling(found["profiling"]), inner, bullet="- "))
    said = [line for note in found["notes"] for line in paragraph(note, inner, bullet="- ")]
    yield from _titled("Notes", said)


def _group(side: Row) -> str:
    """`exp/base/rep-1 and 2 more`."""
    paths = [format.name(one["path"]) for one in side["runs"]]
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _titled(title: str, lines: Sequence[Text]) -> list[Text]:
    return [Text(), Text(title, style="bold"), *map(_indented, lines)] if lines else []


def _indented(line: Text) -> Text:
    return Text(" " * _INDENT).append_text(line)


def _unit(part: Row) -> str:
    return "µs a sample" if part["per_sample"] else "ms"


def _scale(part: Row) -> float:
    return 1e3 if part["per_sample"] else 1.0  # a millisecond column then reads in microseconds


# -- tables ----------------------------------------------------------------------------------------


def _pace(part: Row, width: int) -> list[Text]:
    rows: list[tuple[str, Row, Callable[[float | None], str]]] = []
    for title, key, write in (
        ("step, ms", "step_s", format.milliseconds),
        ("sample, µs", "sample_s", lambda s: format.milliseconds(None if s is None else s * 1e3)),
        ("samples/s", "samples_per_s", lambda rate: format.UNKNOWN if rate is None else f"{rate:,.0f}"),
    ):
        if part[key]:
            rows.append((title, part[key], write))
    given = [row for _, row, _ in rows]
    columns = [
        Column(title="", cells=[title for title, _, _ in rows], words=True),
        Column(title="A", cells=[write(row["a"]) for _, row, write in rows]),
        Column(title="B", cells=[write(row["b"]) for _, row, write in rows]),
        *_judged(given),
    ]
    return table(columns, width)


def _accounts(part: Row, width: int) -> list[Text]:
    rows = part["accounts"]
    return _times("account", [row["account"] for row in rows], rows, part, width) if rows else []


def _layers(part: Row, width: int, every_layer: bool) -> list[Text]:
    rows = [row for row in part["layers"] if row["total"]]
    if not rows:
        return []
    left_out = 0
    if not every_layer and len(rows) > TOP_LAYERS + 1:
        order = sorted(range(len(rows)), key=lambda place: -_weight(rows[place]["total"]))
        left_out = len(rows) - TOP_LAYERS
        rows = [rows[place] for place in sorted(order[:TOP_LAYERS])]
    totals = [row["total"] for row in rows]
    phases = [
        Column(title=f"{phase} B/A", cells=[_ratio(row[phase] or {}) for row in rows], needed=3)
        for phase in ("forward", "backward", "update")
        if any(row[phase] for row in rows)
    ]
    lines = _times(part["unit"], [format.name(row["layer"]) for row in rows], totals, part, width, *phases)
    if left_out:
        smaller = format.plural(left_out, f"smaller {part['unit']}")
        lines.append(Text(f"… and {smaller}; --all shows them", style="dim"))
    return lines


def _weight(row: Row) -> float:
    return max(row["a"] or 0.0, row["b"] or 0.0)


def _times(
    title: str, names: Sequence[str], rows: Sequence[Row], part: Row, width: int, *more: Column
) -> list[Text]:
    scale = _scale(part)
    decimals = format.digits(max(map(_weight, rows)) * scale)

    def written(key: str) -> list[str]:
        return [format.milliseconds(None if row[key] is None else row[key] * scale, decimals) for row in rows]

    columns = [
        Column(title=title, cells=names, words=True),
        Column(title="A", cells=written("a")),
        Column(title="B", cells=written("b")),
        Column(title="B - A", cells=written("difference"), needed=2),
        *_judged(rows),
        *more,
    ]
    return table(columns, width)


def _judged(rows: Sequence[Row]) -> list[Column]:
    return [
        Column(title="B/A", cells=[_ratio(row) for row in rows]),
        Column(title="95 % interval", cells=[_interval(row) for row in rows], needed=1),
        Column(title="B is", cells=[row["verdict"] or format.UNKNOWN for row in rows], words=True),
    ]


def _ratio(row: Row) -> str:
    ratio = row.get("ratio")
    return format.UNKNOWN if ratio is None else f"{ratio:.2f}" if ratio < 100 else ">100"


def _interval(row: Row) -> str:
    if row.get("low") is None or row.get("high") is None:
        return format.UNKNOWN
    low, high = (f"{row[key]:.2f}" if row[key] < 100 else ">100" for key in ("low", "high"))
    return f"{low} to {high}"


def _by_rank(part: Row, width: int) -> Iterator[Text]:
    """Layer times with a column per device, for each side."""
    for side, rows in (part["ranks"] or {}).items():
        if rows:
            lines = device_lines([DeviceSeconds(**row) for row in rows], width)
            yield from _titled(f"Layers of {side.upper()} by device, in ms", lines)


def _results(results: Mapping[str, Sequence[Row]], width: int) -> list[Text]:
    rows = [(NOUNS[stage], row) for stage, found in results.items() for row in found]
    if not rows:
        return []
    told = {True: "yes", False: "no", None: format.UNKNOWN}
    columns = [
        Column(title="", cells=[f"{noun} {row['metric']}" for noun, row in rows], words=True),
        Column(title="A", cells=[_mean(row["a"]) for _, row in rows]),
        Column(title="B", cells=[_mean(row["b"]) for _, row in rows]),
        Column(title="B - A", cells=[_signed(row["difference"]) for _, row in rows]),
        Column(title="told from noise", cells=[told[row["told_from_noise"]] for _, row in rows], needed=1),
    ]
    return table(columns, width)


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.4g}" if values else format.UNKNOWN


def _signed(value: float | None) -> str:
    return format.UNKNOWN if value is None else f"{value:+.3g}"


def _profiling(found: Row) -> str:
    """The slow-down, as the thesis gave it: the increase from without to with."""
    if found["slowdown"] is None:
        return "One side was profiled and the other was not, but there are no steps to compare."
    low, high = (None if found[key] is None else found[key] - 1.0 for key in ("low", "high"))
    interval = "" if low is None or high is None else _change(low, high)
    side, change = str(found["with"]).upper(), found["slowdown"]
    how = "longer" if change >= 0 else "shorter"
    return f"With profiling ({side}) a step takes {format.percent(abs(change))} {how} than without{interval}."


def _change(low: float, high: float) -> str:
    return f", 95 % interval {low * 100:+.1f} % to {high * 100:+.1f} %"
