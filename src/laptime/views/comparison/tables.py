"""The tables of comparisons, for the terminal and for pages."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from laptime.files.text import one_line
from laptime.model import Phase, Stage
from laptime.model.comparison import Comparison, IntervalOver, geometric_mean
from laptime.model.prediction import PredictedTime
from laptime.runs.document import as_text, settings
from laptime.views import format
from laptime.views.comparison.collectives import ExchangedInStep
from laptime.views.comparison.predicted import HOST, PredictedComparison
from laptime.views.comparison.several import SeveralRuns
from laptime.views.comparison.sides import ComparisonView, StageComparison, largest_layers
from laptime.views.comparison.targets import TargetComparison, TargetGroup
from laptime.views.run_view import NOUNS, RunView
from laptime.views.table import Cell, Cells, Column, Table, table_of, titled

_MOST_ROWS = 400
_MOST_KEYS = 100
_MOST_ALONE = 8  # keys that one run alone has; more are folded: they are of another command or script
_LONGEST = 160  # letters of a value; a whole file's content may be configuration
Write = Callable[[float], str]
_SHORT = {Stage.TRAIN: "train", Stage.VALIDATION: "val."}


def _column(title: str, cells: Iterable[str | Cell], *, words: bool = False, priority: int = 0) -> Cells:
    return Column(title=title, words=words, priority=priority, optional=bool(priority)), list(cells)


def number(value: float | None, write: Write) -> str:
    """A number formatted by `write`; a dash where it is unknown."""
    return format.UNKNOWN if value is None or math.isnan(value) else write(value)


def ratio_text(comparison: Comparison) -> str:
    """B over A, with two decimals where each side is one run: noise exceeds a thousandth."""
    return _ratios(comparison, comparison.ratio)


def interval_text(comparison: Comparison) -> str:
    """`1.02 to 1.05`."""
    return _ratios(comparison, comparison.low, comparison.high)


def _ratios(comparison: Comparison, *values: float) -> str:
    digits = 3 if comparison.over is IntervalOver.RUNS else 2
    texts = (f"{value:.{digits}f}" if value < 100 else ">100" for value in values)
    return " to ".join(texts) if comparison.known else format.UNKNOWN


# -- two sides -------------------------------------------------------------------------------------


def _sides(
    what: str, rows: Sequence[tuple[str, Comparison, Write]], *, difference: bool = True
) -> list[Cells]:
    """A row for each quantity: its title, A and B as its function writes them, and what is said of them."""
    differences = _column("B - A", (number(row.difference, write) for _, row, write in rows), priority=2)
    return [
        _column(what, (title for title, _, _ in rows), words=True),
        _column("A", (number(row.a, write) for _, row, write in rows)),
        _column("B", (number(row.b, write) for _, row, write in rows)),
        *([differences] if difference else ()),
        _column("B/A", (ratio_text(row) for _, row, _ in rows)),
        _column("95 % interval", (interval_text(row) for _, row, _ in rows), priority=1),
        _column("B is", (row.verdict or format.UNKNOWN for _, row, _ in rows), words=True),
    ]


def pace_table(part: StageComparison) -> Table:
    """Step time and throughput."""
    rows: list[tuple[str, Comparison | None, Write]] = [
        ("step, ms", part.step, format.milliseconds),
        ("sample, µs", part.sample, lambda seconds: format.milliseconds(seconds * 1e3)),
        ("samples/s", part.rate, "{:,.0f}".format),
    ]
    columns = _sides("", [(title, row, write) for title, row, write in rows if row], difference=False)
    title = f"A {format.step_of(part.noun)}, B against A"
    return table_of(f"{part.stage.value}-pace", columns, title=title)


def accounts_table(part: StageComparison) -> Table:
    """Each account that a side has."""
    rows = [(account.value, row) for account, row in part.accounts.items()]
    return _times("accounts", "account", rows, part)


def layers_table(part: StageComparison, most: int | None = _MOST_ROWS, *, folded: bool = False) -> Table:
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
    fewer = any(map(operator.lt, part.layer_steps, (part.step.count_a, part.step.count_b)))
    marks = ""
    if fewer and part.step.over is IntervalOver.STEPS:
        *first, last = dict.fromkeys(part.layer_steps)
        counts = [*(f"{count:,}" for count in first), format.plural(last, "step")]
        marks = f", in the {' and '.join(counts)} with {part.unit} times"
    table = _times("layers", part.unit, rows, part, *ratios)
    return replace(table, title=table.title + marks, folded=folded)


def _times(
    name: str, what: str, rows: Sequence[tuple[str, Comparison]], part: StageComparison, *more: Cells
) -> Table:
    scale, unit = (1e3, "µs a sample") if part.per_sample else (1.0, "ms")
    decimals = format.digits(max((row.largest for _, row in rows), default=0.0) * scale)

    def write(seconds: float) -> str:
        return format.milliseconds(seconds * scale, decimals)

    columns = [*_sides(what, [(title, row, write) for title, row in rows]), *more]
    return table_of(name, columns, title=f"{what.capitalize()}s, in {unit}")


def results_table(view: ComparisonView) -> Table:
    """What both sides learned."""
    told = {True: "yes", False: "no", None: format.UNKNOWN}
    rows = [
        [
            f"{NOUNS[stage]} {row.metric}",
            *(f"{np.mean(side):.4g}" if side else format.UNKNOWN for side in (row.a, row.b)),
            number(row.difference, "{:+.3g}".format),
            told[row.told_from_noise],
        ]
        for stage, results in view.results.items()
        for row in results
    ]
    columns = titled(("", "A", "B", "B - A", "told from noise"))
    title = "What was learned, in the last epoch"
    return Table(name="results", title=title, columns=columns, rows=rows)


def collectives_table(view: ComparisonView) -> Table:
    """What a rank exchanges in a step: A beside B."""
    rows = view.collectives

    def column(
        title: str, value: Callable[[ExchangedInStep], float | None], write: Write, priority: int = 0
    ) -> list[Cells]:
        sides = [("A", [row.a for row in rows]), ("B", [row.b for row in rows])]
        return [
            _column(
                f"{letter} {title}",
                [number(None if each is None else value(each), write) for each in side],
                priority=priority,
            )
            for letter, side in sides
        ]

    columns: list[Cells] = [
        _column("collective", [format.name(row.kind) for row in rows], words=True),
        *column("calls", lambda each: each.calls, lambda calls: f"{calls:.3g}", priority=2),
        *column("MB", lambda each: each.bytes / 1e6, lambda size: f"{size:,.3g}"),
        *column("ms", lambda each: each.seconds, format.milliseconds, priority=1),
        *column("exposed ms", lambda each: each.exposed_s, format.milliseconds),
    ]
    return table_of("collectives", columns, title="What a rank exchanges in a step")


def target_table(target: TargetComparison) -> Table:
    """The time to the target of each group, with an interval over its repetitions."""
    groups = target.groups
    goal = one_line(format.goal(target.metric, target.value))

    def mean(group: TargetGroup) -> str:
        if group.seconds:
            return format.long_duration(group.mean_s)
        return f"did not reach it in {format.long_duration(group.spent_s)}"

    def interval(group: TargetGroup) -> str:
        ends = [end for end in group.interval_s if not math.isnan(end)]
        return " to ".join(map(format.long_duration, ends)) or format.UNKNOWN

    rows = [group.against_first for group in groups]
    ratios = ("1" if not place else ratio_text(row) if row else "" for place, row in enumerate(rows))
    over_runs = (interval_text(row) if row and row.over is IntervalOver.RUNS else "" for row in rows)
    columns = [
        _column("", (one_line(group.name) for group in groups), words=True),
        _column("reached it", (f"{len(group.seconds)} of {group.runs}" for group in groups)),
        _column("time", map(mean, groups)),
        _column("95 % interval", map(interval, groups)),
        _column("ratio", ratios),
        _column("interval of it", over_runs, priority=1),
    ]
    return table_of("target", columns, title=f"Time to {goal}")


# -- several runs ----------------------------------------------------------------------------------


def _against_first(view: SeveralRuns) -> list[Cells]:
    """The step of each group over that of the baseline, which is compared with nothing."""
    rows = [group.step for group in view.groups]
    verdicts = ("baseline" if row is None else row.verdict or format.UNKNOWN for row in rows)
    return [
        _column("ratio", ("1" if row is None else ratio_text(row) for row in rows)),
        _column("95 % interval", ("" if row is None else interval_text(row) for row in rows)),
        _column("it is", verdicts, words=True),
    ]


def runs_table(view: SeveralRuns) -> Table:
    """A row for each run; columns of what differs or is known."""
    runs, stage = view.runs, view.stage
    parts = [run.stages.get(stage) for run in runs]
    steps = [part.steps if part else None for part in parts]
    medians = [part.wall_s.median if part and part.wall_s.count else None for part in parts]
    rates = [part.samples_per_s if part else None for part in parts]
    decimals = format.digits(max((median for median in medians if median is not None), default=None))
    devices = [device_text(run, stage) for run in runs]
    batches = [run.stages[stage].series.batch if stage in run.stages else math.nan for run in runs]
    columns = [
        _column("run", (one_line(run.name) for run in runs), words=True),
        _column("status", (run.run.status for run in runs), words=True),
        *([_column("device", devices, words=True)] if len(set(devices)) > 1 else ()),
        _column("steps", (number(count, "{:,}".format) for count in steps)),
        _column("step ms", (format.milliseconds(median, decimals) for median in medians)),
    ]
    if len({batch for batch in batches if not math.isnan(batch)}) > 1:
        columns.append(_column("batch", (number(batch, "{:g}".format) for batch in batches)))
    columns += [] if view.repeated else _against_first(view)
    columns.append(_column("samples/s", (number(rate, "{:,.0f}".format) for rate in rates)))
    title = "Median step" + ("" if view.repeated else ", and its ratio to the baseline with a 95 % interval")
    return table_of("runs", [*columns, *_learned(runs)], title=title)


def device_text(run: RunView, stage: Stage) -> str:
    """The device and how many of them the run used."""
    part = run.stages.get(stage)
    name = one_line(str(run.device.get("name") or format.UNKNOWN))
    return f"{part.ranks} × {name}" if part and part.ranks > 1 else name


def _learned(runs: Sequence[RunView]) -> Iterator[Cells]:
    """Loss and accuracy of the last epoch: of the validation where any run has one, else of the training."""
    for metric, title, write in (("loss", "loss", format.loss), ("top1", "top-1", format.percent)):
        for stage in (Stage.VALIDATION, Stage.TRAIN):
            values = [run.result(stage, metric) for run in runs]
            if any(value is not None for value in values):
                texts = (
                    "not finite" if value is not None and math.isnan(value) else number(value, write)
                    for value in values
                )
                yield _column(f"{_SHORT[stage]} {title}", texts)
                break


def groups_table(view: SeveralRuns) -> Table:
    """Repetitions together, compared over runs."""
    walls = [[run.wall_s(view.stage) for run in group.runs] for group in view.groups]
    medians = [[float(np.median(wall)) for wall in group if wall.size] for group in walls]
    ends = [[format.milliseconds(pick(group)) for pick in (min, max)] if group else [] for group in medians]
    columns = [
        _column("group", (one_line(group.name) for group in view.groups), words=True),
        _column("runs", (str(len(group)) for group in medians)),
        _column("step ms", (format.milliseconds(geometric_mean(group)) for group in medians)),
        _column("its runs", map(" to ".join, ends)),
        *_against_first(view),
    ]
    return table_of("groups", columns, title="Repetitions together")


def difference_tables(runs: Sequence[RunView]) -> list[Table]:
    """Keys of configuration and environment that are not the same in all runs, a column for each run."""
    heads = ("key", *(one_line(run.name) for run in runs))
    tables = []
    for name, title, values in (
        ("config", "Configuration", [run.run.config for run in runs]),
        ("machine", "Environment", [run.run.environment for run in runs]),
    ):
        facts = [
            {one_line(key): one_line(as_text(value)) for key, value in settings(each)} for each in values
        ]
        keys = dict.fromkeys(key for fact in facts for key in fact)
        differing = [key for key in keys if len({fact.get(key) for fact in facts}) > 1]
        alone = {key for key in differing if sum(key in fact for fact in facts) == 1}
        alone = alone if len(alone) > _MOST_ALONE else set()
        for end, what, every in (
            ("differences", "what differs", [key for key in differing if key not in alone]),
            ("alone", "in one run alone", [key for key in differing if key in alone]),
        ):
            more = f" (the first {_MOST_KEYS} of {len(every)})" if len(every) > _MOST_KEYS else ""
            chosen = every[:_MOST_KEYS]
            tables.append(
                Table(
                    name=f"{name}-{end}",
                    title=f"{title}: {what}{more}",
                    columns=titled(heads, words=len(heads)),
                    rows=[[key, *(_clipped(fact.get(key, "")) for fact in facts)] for key in chosen],
                    folded=end == "alone",
                )
            )
    return tables


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


# -- a run and its prediction ----------------------------------------------------------------------


def predicted_phases_table(view: PredictedComparison) -> Table:
    """Phases, the host and the step, which is their sum."""
    rows = [(phase.value, time) for phase, time in view.phases.items() if time.largest]
    rows += [] if view.host is None else [(HOST, view.host)]
    return replace(_predicted("phases", "phase", [*rows, ("step", view.step)], view), total=True)


def predicted_layers_table(
    view: PredictedComparison, most: int | None = _MOST_ROWS, *, folded: bool = False
) -> Table:
    """The largest layers in network order, and how far each phase is off."""
    shown = largest_layers(view.layers, most)
    phases = [
        _column(f"{phase.value} {_off(view)}", (apart(row.phases[phase]) for row in shown), priority=1)
        for phase in Phase
        if any(row.phases[phase].measured for row in shown)
    ]
    rows = [(format.name(row.layer), row.total) for row in shown]
    return replace(_predicted("layers", "layer", rows, view, *phases), folded=folded)


def _off(view: PredictedComparison) -> str:
    return "ratio" if view.same_device is False else "off"


def _predicted(
    name: str, what: str, rows: Sequence[tuple[str, PredictedTime]], view: PredictedComparison, *more: Cells
) -> Table:
    decimals = format.digits(max((time.largest for _, time in rows), default=0.0))
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
