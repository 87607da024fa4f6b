"""The tables of comparisons, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from laptime.files.text import one_line
from laptime.model import Phase, Stage
from laptime.model.comparison import Comparison, IntervalOver
from laptime.model.prediction import PredictedTime
from laptime.runs.flat_config import as_text, settings
from laptime.views import format
from laptime.views.comparison.predicted import HOST, PredictedComparison
from laptime.views.comparison.several import SeveralRuns
from laptime.views.comparison.sides import ComparedRun, ComparisonView, StageComparison, largest_layers
from laptime.views.run_view import NOUNS
from laptime.views.table import Cell, Column, Table, table_of, titled

_MOST_ROWS = 400
_MOST_KEYS = 100
_MOST_ALONE = 8  # keys that one run alone has; more are folded: they are of another command or script
_LONGEST = 160  # letters of a value; a whole file's content may be configuration
_SHORT = {Stage.TRAIN: "train", Stage.VALIDATION: "val."}
_BASELINE = "baseline"

Cells = tuple[Column, Sequence[str | Cell]]


def _column(title: str, cells: Iterable[str | Cell], *, words: bool = False, priority: int = 0) -> Cells:
    return Column(title=title, words=words, priority=priority, optional=bool(priority)), list(cells)


def number(value: float | None, write: Callable[[float], str]) -> str:
    """A number formatted by `write`; a dash where it is unknown."""
    return format.UNKNOWN if value is None or math.isnan(value) else write(value)


def ratio_text(comparison: Comparison) -> str:
    """B over A, with two decimals where each side is one run: noise exceeds a thousandth."""
    return number(comparison.ratio, lambda value: _ratio(value, comparison))


def interval_text(comparison: Comparison) -> str:
    """`1.02 to 1.05`."""
    ends = [_ratio(end, comparison) for end in (comparison.low, comparison.high)]
    return " to ".join(ends) if comparison.known else format.UNKNOWN


def _ratio(value: float, comparison: Comparison) -> str:
    digits = 3 if comparison.over is IntervalOver.RUNS else 2
    return f"{value:.{digits}f}" if value < 100 else ">100"


# -- two sides -------------------------------------------------------------------------------------


def _judged(rows: Sequence[Comparison]) -> list[Cells]:
    return [
        _column("B/A", map(ratio_text, rows)),
        _column("95 % interval", map(interval_text, rows), priority=1),
        _column("B is", (row.verdict or format.UNKNOWN for row in rows), words=True),
    ]


def pace_table(part: StageComparison) -> Table:
    """Step time and throughput."""
    times: list[tuple[str, Comparison | None, Callable[[float], str]]] = [
        ("step, ms", part.step, format.milliseconds),
        ("sample, µs", part.sample, lambda seconds: format.milliseconds(seconds * 1e3)),
        ("samples/s", part.rate, "{:,.0f}".format),
    ]
    known = [(title, row, write) for title, row, write in times if row is not None]
    columns = [
        _column("", (title for title, _, _ in known), words=True),
        _column("A", (number(row.a, write) for _, row, write in known)),
        _column("B", (number(row.b, write) for _, row, write in known)),
        *_judged([row for _, row, _ in known]),
    ]
    step = f"A {part.noun} step" if part.noun else "A step"
    return table_of(f"{part.stage.value}-pace", columns, title=f"{step}, B against A")


def accounts_table(part: StageComparison) -> Table | None:
    """Each account that a side has."""
    rows = [(account.value, row) for account, row in part.accounts.items()]
    return _times("accounts", "account", rows, part) if rows else None


def layers_table(part: StageComparison, most: int | None = _MOST_ROWS) -> Table | None:
    """The largest layers in network order, all phases together, and each phase's ratio."""
    shown = largest_layers(part.layers, most)
    ratios = [
        _column(
            f"{phase.value} B/A",
            (ratio_text(row.phases[phase]) if phase in row.phases else format.UNKNOWN for row in shown),
            priority=3,
        )
        for phase in Phase
        if any(phase in row.phases for row in shown)
    ]
    rows = [(format.name(row.layer), row.total) for row in shown]
    return _times("layers", part.unit, rows, part, *ratios) if rows else None


def _times(
    name: str, what: str, rows: Sequence[tuple[str, Comparison]], part: StageComparison, *more: Cells
) -> Table:
    scale, unit = (1e3, "µs a sample") if part.per_sample else (1.0, "ms")
    decimals = format.digits(max(row.largest for _, row in rows) * scale)

    def written(seconds: float) -> str:
        return number(seconds, lambda value: format.milliseconds(value * scale, decimals))

    columns = [
        _column(what, (title for title, _ in rows), words=True),
        _column("A", (written(row.a) for _, row in rows)),
        _column("B", (written(row.b) for _, row in rows)),
        _column("B - A", (written(row.difference) for _, row in rows), priority=2),
        *_judged([row for _, row in rows]),
        *more,
    ]
    return table_of(name, columns, title=f"{what.capitalize()}s, in {unit}")


def results_table(view: ComparisonView) -> Table | None:
    """What both sides learned."""
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
    columns = titled(("", "A", "B", "B - A", "told from noise"))
    title = "What was learned, in the last epoch"
    return Table(name="results", title=title, columns=columns, rows=rows) if rows else None


# -- several runs ----------------------------------------------------------------------------------


def _against_first(view: SeveralRuns) -> list[Cells]:
    """The step of each group over that of the baseline, which is compared with nothing."""
    rows = [group.step for group in view.groups]
    verdicts = (_BASELINE if row is None else row.verdict or format.UNKNOWN for row in rows)
    return [
        _column("ratio", ("1" if row is None else ratio_text(row) for row in rows)),
        _column("95 % interval", ("" if row is None else interval_text(row) for row in rows)),
        _column("it is", verdicts, words=True),
    ]


def runs_table(view: SeveralRuns) -> Table:
    """A row for each run; columns of what differs or is known."""
    runs, stage = view.runs, view.stage
    reads = [run.series.get(stage) for run in runs]
    medians = [float(np.median(wall)) if (wall := run.wall_s(stage)).size else None for run in runs]
    decimals = format.digits(max((median for median in medians if median is not None), default=None))
    devices = [device_text(run, stage) for run in runs]
    batches = [read.batch if read is not None else math.nan for read in reads]
    rates = [read.samples_per_s if read is not None else None for read in reads]
    columns = [
        _column("run", (one_line(run.name) for run in runs), words=True),
        _column("status", (run.recorded.status for run in runs), words=True),
        *([_column("device", devices, words=True)] if len(set(devices)) > 1 else ()),
        _column(
            "steps",
            (
                number(run.view.stages[stage].steps if stage in run.view.stages else None, "{:,}".format)
                for run in runs
            ),
        ),
        _column("step ms", (format.milliseconds(median, decimals) for median in medians)),
    ]
    if len({batch for batch in batches if not math.isnan(batch)}) > 1:
        columns.append(_column("batch", (number(batch, "{:g}".format) for batch in batches)))
    columns += [] if view.repeated else _against_first(view)
    columns.append(_column("samples/s", (number(rate, "{:,.0f}".format) for rate in rates)))
    title = "Median step" + ("" if view.repeated else ", and its ratio to the baseline with a 95 % interval")
    return table_of("runs", [*columns, *_learned(runs)], title=title)


def device_text(run: ComparedRun, stage: Stage) -> str:
    """The device and how many of them the run used."""
    ranks = len(run.series[stage].devices) if stage in run.series else 1
    name = one_line(str(run.view.device.get("name") or format.UNKNOWN))
    return f"{ranks} × {name}" if ranks > 1 else name


def _learned(runs: Sequence[ComparedRun]) -> Iterator[Cells]:
    """Loss and accuracy of the last epoch: of the validation where any run has one, else of the training."""
    for metric, title, write in (("loss", "loss", format.loss), ("top1", "top-1", format.percent)):
        for stage in (Stage.VALIDATION, Stage.TRAIN):
            values = [run.result(stage, metric) for run in runs]
            if any(value is not None for value in values):
                lost = [value is not None and math.isnan(value) for value in values]
                pairs = zip(values, lost, strict=True)
                texts = ("not finite" if gone else number(value, write) for value, gone in pairs)
                yield _column(f"{_SHORT[stage]} {title}", texts)
                break


def groups_table(view: SeveralRuns) -> Table:
    """Repetitions together, compared over runs."""
    walls = [[wall for run in group.runs if (wall := run.wall_s(view.stage)).size] for group in view.groups]
    medians = [[float(np.median(wall)) for wall in group] for group in walls]
    centres = [float(np.exp(np.mean(np.log(group)))) if group else None for group in medians]
    ends = [[format.milliseconds(pick(group)) for pick in (min, max)] if group else [] for group in medians]
    columns = [
        _column("group", (one_line(group.name) for group in view.groups), words=True),
        _column("runs", (str(len(group)) for group in medians)),
        _column("step ms", map(format.milliseconds, centres)),
        _column("its runs", map(" to ".join, ends)),
        *_against_first(view),
    ]
    return table_of("groups", columns, title="Repetitions together")


def difference_tables(runs: Sequence[ComparedRun]) -> list[Table]:
    """Keys of configuration and environment that are not the same in all runs, a column for each run."""
    tables = []
    for name, title, values in (
        ("config", "Configuration", [run.recorded.config for run in runs]),
        ("machine", "Environment", [run.recorded.environment for run in runs]),
    ):
        facts = [
            {one_line(key): one_line(as_text(value)) for key, value in settings(each)} for each in values
        ]
        keys = dict.fromkeys(key for fact in facts for key in fact)
        differing = [key for key in keys if len({fact.get(key) for fact in facts}) > 1]
        alone = [key for key in differing if sum(key in fact for fact in facts) == 1]
        alone = alone if len(alone) > _MOST_ALONE else []
        shared = [key for key in differing if key not in set(alone)]
        heads = ("key", *(one_line(run.name) for run in runs))
        for end, what, kept in (
            ("differences", "what differs", shared),
            ("alone", "in one run alone", alone),
        ):
            more = f" (the first {_MOST_KEYS} of {len(kept)})" if len(kept) > _MOST_KEYS else ""
            rows = [[key, *(_clipped(fact.get(key, "")) for fact in facts)] for key in kept[:_MOST_KEYS]]
            columns = titled(heads, words=len(heads))
            tables.append(
                Table(
                    name=f"{name}-{end}",
                    title=f"{title}: {what}{more}",
                    columns=columns,
                    rows=rows,
                    folded=end == "alone",
                )
            )
    return [table for table in tables if table.rows]


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


# -- a run and its prediction ----------------------------------------------------------------------


def predicted_phases_table(view: PredictedComparison) -> Table:
    """Phases, the host and the step, which is their sum."""
    rows = [(phase.value, time) for phase, time in view.phases.items() if time.largest]
    rows += [] if view.host is None else [(HOST, view.host)]
    return replace(_predicted("phases", "phase", [*rows, ("step", view.step)], view), total=True)


def predicted_layers_table(view: PredictedComparison, most: int | None = _MOST_ROWS) -> Table | None:
    """The largest layers in network order, and how far each phase is off."""
    shown = largest_layers(view.layers, most)
    phases = [
        _column(f"{phase.value} {_off(view)}", (apart(row.phases[phase]) for row in shown), priority=1)
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
    columns = [
        _column(what, (title for title, _ in rows), words=True),
        _column("measured", (format.milliseconds(time.measured, decimals) for _, time in rows)),
        _column("predicted", (format.milliseconds(time.predicted, decimals) for _, time in rows)),
        _column(_off(view), (apart(time) for _, time in rows)),
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
