"""The tables of comparisons, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from laptime.model import Phase, Stage
from laptime.model.comparison import Comparison, IntervalOver
from laptime.runs.files import one_line
from laptime.runs.flat_config import as_text, settings
from laptime.views import format
from laptime.views.comparison.predicted import HOST, PredictedComparison, PredictedTime
from laptime.views.comparison.several import SeveralRuns
from laptime.views.comparison.sides import (
    ComparedRun,
    ComparisonView,
    LayerComparison,
    StageComparison,
    largest_layers,
)
from laptime.views.run_view import NOUNS
from laptime.views.table import Cell, Column, Table, table_of, titled

_MOST_ROWS = 400
_MOST_KEYS = 100
_MOST_ALONE = 8  # keys that one run alone has; more are folded: they are of another command or script
_LONGEST = 160  # letters of a value; a whole file's content may be configuration
_SHORT = {Stage.TRAIN: "train", Stage.VALIDATION: "val."}
_BASELINE = "baseline"

Cells = tuple[Column, Sequence[str | Cell]]


def number(value: float | None, write: Callable[[float], str]) -> str:
    """As `write` has it; a dash where it is not known."""
    return format.UNKNOWN if value is None or math.isnan(value) else write(value)


def ratio_text(comparison: Comparison) -> str:
    """B over A. Steps of one run each do not tell differences of a thousandth."""
    return number(comparison.ratio, lambda value: _ratio(value, comparison))


def interval_text(comparison: Comparison) -> str:
    """`1.02 to 1.05`."""
    ends = [_ratio(end, comparison) for end in (comparison.low, comparison.high)]
    return " to ".join(ends) if not math.isnan(comparison.low) else format.UNKNOWN


def _ratio(value: float, comparison: Comparison) -> str:
    digits = 3 if comparison.over is IntervalOver.RUNS else 2
    return f"{value:.{digits}f}" if value < 100 else ">100"


# -- two sides -------------------------------------------------------------------------------------


def _judged(rows: Sequence[Comparison]) -> list[Cells]:
    return [
        (Column(title="B/A"), [ratio_text(row) for row in rows]),
        (
            Column(title="95 % interval", priority=1, optional=True),
            [interval_text(row) for row in rows],
        ),
        (Column(title="B is", words=True), [row.verdict or format.UNKNOWN for row in rows]),
    ]


def pace_table(part: StageComparison) -> Table:
    """Step time and throughput."""
    times: list[tuple[str, Comparison | None, Callable[[float], str]]] = [
        ("step, ms", part.step, format.milliseconds),
        ("sample, µs", part.sample, lambda seconds: format.milliseconds(seconds * 1e3)),
        ("samples/s", part.rate, "{:,.0f}".format),
    ]
    known = [(title, row, write) for title, row, write in times if row is not None]
    columns: list[Cells] = [
        (Column(title="", words=True), [title for title, _, _ in known]),
        (Column(title="A"), [number(row.a, write) for _, row, write in known]),
        (Column(title="B"), [number(row.b, write) for _, row, write in known]),
    ]
    step = f"A {part.noun} step" if part.noun else "A step"
    return table_of(
        f"{part.stage.value}-pace",
        [*columns, *_judged([row for _, row, _ in known])],
        title=f"{step}, B against A",
    )


def accounts_table(part: StageComparison) -> Table | None:
    """Each account that a side has."""
    rows = list(part.accounts.items())
    return (
        _times("accounts", "account", [(account.value, row) for account, row in rows], part) if rows else None
    )


def layers_table(part: StageComparison, most: int | None = _MOST_ROWS) -> Table | None:
    """The largest layers in network order, all phases together, and each phase's ratio."""
    shown = largest_layers(part.layers, most)
    phases = [phase for phase in Phase if any(phase in row.phases for row in shown)]
    ratios: list[Cells] = [
        (
            Column(title=f"{phase.value} B/A", priority=3, optional=True),
            [ratio_text(row.phases[phase]) if phase in row.phases else format.UNKNOWN for row in shown],
        )
        for phase in phases
    ]
    rows = [(format.name(row.layer), row.total) for row in shown]
    return _times("layers", part.unit, rows, part, *ratios) if rows else None


def _times(
    name: str, what: str, rows: Sequence[tuple[str, Comparison]], part: StageComparison, *more: Cells
) -> Table:
    scale = 1e3 if part.per_sample else 1.0  # milliseconds then read in microseconds
    decimals = format.digits(max(row.largest for _, row in rows) * scale)

    def written(seconds: Sequence[float]) -> list[str]:
        return [
            number(value, lambda value: format.milliseconds(value * scale, decimals)) for value in seconds
        ]

    columns: list[Cells] = [
        (Column(title=what, words=True), [title for title, _ in rows]),
        (Column(title="A"), written([row.a for _, row in rows])),
        (Column(title="B"), written([row.b for _, row in rows])),
        (Column(title="B - A", priority=2, optional=True), written([row.difference for _, row in rows])),
        *_judged([row for _, row in rows]),
        *more,
    ]
    return table_of(
        name, columns, title=f"{what.capitalize()}s, in {'µs a sample' if part.per_sample else 'ms'}"
    )


def results_table(view: ComparisonView) -> Table | None:
    """What both sides learned."""
    if not view.results:
        return None
    told = {True: "yes", False: "no", None: format.UNKNOWN}
    rows = [
        [
            f"{NOUNS[row.stage.value]} {row.metric}",
            *(f"{np.mean(side):.4g}" if side else format.UNKNOWN for side in (row.a, row.b)),
            number(row.difference, "{:+.3g}".format),
            told[row.told_from_noise],
        ]
        for row in view.results
    ]
    return Table(
        name="results",
        title="What was learned, in the last epoch",
        columns=titled(("", "A", "B", "B - A", "told from noise")),
        rows=rows,
    )


# -- several runs ----------------------------------------------------------------------------------


def _against_first(rows: Sequence[Comparison | None]) -> list[Cells]:
    """Each step over that of the baseline, which is compared with nothing."""
    return [
        (Column(title="ratio"), ["1" if row is None else ratio_text(row) for row in rows]),
        (Column(title="95 % interval"), ["" if row is None else interval_text(row) for row in rows]),
        (
            Column(title="it is", words=True),
            [_BASELINE if row is None else row.verdict or format.UNKNOWN for row in rows],
        ),
    ]


def runs_table(view: SeveralRuns) -> Table:
    """A row for each run. Where all ran on one device, it is named elsewhere."""
    runs, stage = view.runs, view.stage
    reads = [one.series.get(stage) for one in runs]
    medians = [float(np.median(wall)) if (wall := one.wall_s(stage)).size else None for one in runs]
    decimals = format.digits(max((median for median in medians if median is not None), default=None))
    columns: list[Cells] = [
        (Column(title="run", words=True), [one_line(one.name) for one in runs]),
        (Column(title="status", words=True), [one.run.status for one in runs]),
    ]
    devices = [device_text(one, stage) for one in runs]
    if len(set(devices)) > 1:
        columns.append((Column(title="device", words=True), devices))
    columns.append((Column(title="steps"), [number(one.steps(stage), "{:,}".format) for one in runs]))
    columns.append((Column(title="step ms"), [format.milliseconds(median, decimals) for median in medians]))
    batches = [read.batch if read is not None else math.nan for read in reads]
    if len({batch for batch in batches if not math.isnan(batch)}) > 1:
        columns.append((Column(title="batch"), [number(batch, "{:g}".format) for batch in batches]))
    if not view.repeated:
        columns += _against_first([group.step for group in view.groups])
    rates = [read.samples_per_s if read is not None else None for read in reads]
    columns.append((Column(title="samples/s"), [number(rate, "{:,.0f}".format) for rate in rates]))
    title = "Median step" + ("" if view.repeated else ", and its ratio to the baseline with a 95 % interval")
    return table_of("runs", [*columns, *_learned(runs)], title=title)


def device_text(one: ComparedRun, stage: Stage) -> str:
    """Where it ran, and on how many of them."""
    ranks = len(one.series[stage].devices) if stage in one.series else 1
    name = one_line(one.device) or format.UNKNOWN
    return f"{ranks} × {name}" if ranks > 1 else name


def _learned(runs: Sequence[ComparedRun]) -> list[Cells]:
    """Loss and accuracy of the last epoch: of the validation where any run has one, else of the training."""
    columns: list[Cells] = []
    for metric, title, write in (("loss", "loss", format.loss), ("top1", "top-1", format.percent)):
        for stage in (Stage.VALIDATION, Stage.TRAIN):
            values = [one.result(stage, metric) for one in runs]
            if any(value is not None for value in values):
                texts = [
                    "not finite" if value is not None and math.isnan(value) else number(value, write)
                    for value in values
                ]
                columns.append((Column(title=f"{_SHORT[stage]} {title}"), texts))
                break
    return columns


def groups_table(view: SeveralRuns) -> Table:
    """Repetitions together, compared over runs."""
    medians = [
        [float(np.median(wall)) for one in group.runs if (wall := one.wall_s(view.stage)).size]
        for group in view.groups
    ]
    centres = [float(np.exp(np.mean(np.log(walls)))) if walls else None for walls in medians]
    columns: list[Cells] = [
        (Column(title="group", words=True), [one_line(group.name) for group in view.groups]),
        (Column(title="runs"), [str(len(walls)) for walls in medians]),
        (Column(title="step ms"), [format.milliseconds(centre) for centre in centres]),
        (
            Column(title="its runs"),
            [
                f"{format.milliseconds(min(walls))} to {format.milliseconds(max(walls))}" if walls else ""
                for walls in medians
            ],
        ),
        *_against_first([group.step for group in view.groups]),
    ]
    return table_of("groups", columns, title="Repetitions together")


def difference_tables(runs: Sequence[ComparedRun]) -> list[Table]:
    """Keys of configuration and environment that are not the same in all runs, a column for each run."""
    tables = []
    for name, title, values in (
        ("config", "Configuration", [one.run.config for one in runs]),
        ("machine", "Environment", [one.run.environment for one in runs]),
    ):
        facts = [
            {one_line(key): one_line(as_text(value)) for key, value in settings(each)} for each in values
        ]
        keys = dict.fromkeys(key for fact in facts for key in fact)
        differing = [key for key in keys if len({fact.get(key) for fact in facts}) > 1]
        alone = [key for key in differing if sum(key in fact for fact in facts) == 1]
        alone = alone if len(alone) > _MOST_ALONE else []
        shared = [key for key in differing if key not in set(alone)]
        heads = [one_line(one.name) for one in runs]
        tables += [
            _keys_table(f"{name}-differences", f"{title}: what differs", shared, facts, heads, folded=False),
            _keys_table(f"{name}-alone", f"{title}: in one run alone", alone, facts, heads, folded=True),
        ]
    return [table for table in tables if table.rows]


def _keys_table(
    name: str,
    title: str,
    keys: Sequence[str],
    facts: Sequence[Mapping[str, str]],
    heads: Sequence[str],
    *,
    folded: bool,
) -> Table:
    values = [[fact.get(key, "") for fact in facts] for key in keys[:_MOST_KEYS]]
    rows = [
        [key, *(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…" for text in texts)]
        for key, texts in zip(keys, values, strict=False)
    ]
    more = f" (the first {_MOST_KEYS} of {len(keys)})" if len(keys) > _MOST_KEYS else ""
    columns = titled(("key", *heads), words=len(heads) + 1)
    return Table(name=name, title=title + more, columns=columns, rows=rows, folded=folded)


# -- a run and its prediction ----------------------------------------------------------------------


def predicted_phases_table(view: PredictedComparison) -> Table:
    """Phases, the host and the step, which is their sum."""
    rows = [(phase.value, time) for phase, time in view.phases.items() if time.largest]
    rows += [] if view.host is None else [(HOST, view.host)]
    return replace(_predicted("phases", "phase", [*rows, ("step", view.step)], view), total=True)


def predicted_layers_table(view: PredictedComparison, most: int | None = _MOST_ROWS) -> Table | None:
    """The largest layers in network order, and how far each phase is off."""
    shown: list[LayerComparison[PredictedTime]] = largest_layers(view.layers, most)
    off = _off(view)
    phases: list[Cells] = [
        (
            Column(title=f"{phase.value} {off}", priority=1, optional=True),
            [apart(row.phases[phase]) for row in shown],
        )
        for phase in Phase
        if any(row.phases[phase].measured for row in shown)
    ]
    rows = [(format.name(row.layer), row.total) for row in shown]
    return _predicted("layers", "layer", rows, view, *phases) if rows else None


def _off(view: PredictedComparison) -> str:
    return "ratio" if view.same_device is False else "off"


def _predicted(
    name: str, what: str, rows: Sequence[tuple[str, PredictedTime]], view: PredictedComparison, *more: Cells
) -> Table:
    decimals = format.digits(max(time.largest for _, time in rows))
    columns: list[Cells] = [
        (Column(title=what, words=True), [title for title, _ in rows]),
        (Column(title="measured"), [format.milliseconds(time.measured, decimals) for _, time in rows]),
        (Column(title="predicted"), [format.milliseconds(time.predicted, decimals) for _, time in rows]),
        (Column(title=_off(view)), [apart(time) for _, time in rows]),
        *more,
    ]
    return table_of(name, columns, title=f"{what.capitalize()}s, in ms")


def apart(time: PredictedTime) -> str:
    """Predicted against measured: per cent that it is off, or the ratio where that is no error."""
    if time.ratio is None:
        return format.UNKNOWN
    if time.ratio >= 100:
        return ">100x"
    return f"{time.ratio:.3g}x" if time.error is None else f"{time.error * 100:+.0f} %"
