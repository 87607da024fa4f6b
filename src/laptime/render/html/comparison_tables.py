"""The tables of a comparison's page: the runs, what was compared, and in what they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from laptime.files.text import one_line
from laptime.model import Stage
from laptime.model.comparison import compare_runs
from laptime.render.html.page import Cell, Table
from laptime.render.html.run_tables import facts_tables
from laptime.runs import Run
from laptime.views import format
from laptime.views.figures.comparison import Compared
from laptime.views.run_view import NOUNS
from laptime.views.step_series import Samples

BASELINE = "baseline"
_MOST_ROWS = 400
_MOST_KEYS = 100
_MOST_ALONE = 8  # keys that one run alone has; more are folded: they are of another command or script
_SHORT = {Stage.TRAIN: "train", Stage.VALIDATION: "val."}
_LONGEST = 160  # letters of a value; a whole file's content may be configuration

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Repetitions of one configuration, or one run by itself."""

    name: str
    runs: Sequence[Compared]


def runs_table(runs: Sequence[Compared], stage: Stage, links: Sequence[str] = ()) -> Table:
    """A row for each run; the ratio is to the first. Where all ran on one device, it is said elsewhere."""
    parts = [run.found[stage.value] or {} for run in runs]
    batches = {run.timed.batch for run in runs if run.timed is not None and not np.isnan(run.timed.batch)}
    columns: dict[str, list[str | Cell]] = {
        "run": [
            Cell(text=one_line(run.name), link=links[place] if links else "")
            for place, run in enumerate(runs)
        ],
        "status": [run.found["run"]["status"] for run in runs],
        "device": [device(run, part) for run, part in zip(runs, parts, strict=True)],
        "steps": [f"{part['steps']:,}" if part else format.UNKNOWN for part in parts],
        "step ms": _medians(runs),
    }
    if len(set(map(str, columns["device"]))) == 1:
        del columns["device"]
    if len(batches) > 1:
        columns["batch"] = [
            format.UNKNOWN if run.timed is None or np.isnan(run.timed.batch) else f"{run.timed.batch:g}"
            for run in runs
        ]
    columns |= _against(runs[0], runs)
    columns["samples/s"] = [_number(part.get("samples_per_s"), "{:,.0f}".format) for part in parts]
    return _table("runs", columns | _learned(runs))


def device(run: Compared, part: Row) -> str:
    """Where it ran, and on how many of them."""
    name = (run.found["run"]["environment"].get("device") or {}).get("name") or format.UNKNOWN
    ranks = part.get("ranks", 1)
    return f"{ranks} × {one_line(name)}" if ranks > 1 else one_line(name)


def _medians(runs: Sequence[Compared]) -> list[str | Cell]:
    found = [float(np.median(run.wall_s)) if run.wall_s.size else None for run in runs]
    decimals = format.digits(max((one for one in found if one is not None), default=None))
    return [format.milliseconds(one, decimals) for one in found]


def _against(first: Compared, runs: Sequence[Compared]) -> dict[str, list[str | Cell]]:
    """Each run's step over that of the baseline, with what can be said of it."""
    rows = [None if run is first else judged([first.wall_s], [run.wall_s]) for run in runs]
    return {
        "ratio": ["1" if row is None else ratio(row) for row in rows],
        "95 %": ["" if row is None else interval(row) for row in rows],
        "it is": [BASELINE if row is None else row["verdict"] or format.UNKNOWN for row in rows],
    }


def judged(a: Sequence[Samples], b: Sequence[Samples]) -> Row:
    """The ratio of B to A with its interval and verdict; None where something is not known."""
    found = compare_runs(a, b)
    numbers = {"ratio": found.ratio, "low": found.low, "high": found.high}
    known = {key: None if np.isnan(value) else value for key, value in numbers.items()}
    return {**known, "verdict": found.verdict}


def _learned(runs: Sequence[Compared]) -> dict[str, list[str | Cell]]:
    """Loss and accuracy of the last epoch: of the validation where any run has one, else of the training."""
    columns: dict[str, list[str | Cell]] = {}
    for key, title, write in (
        ("loss", "loss", format.loss),
        ("top1", "top-1", format.percent),
    ):
        for stage in (Stage.VALIDATION, Stage.TRAIN):
            values = [result(run, stage, key) for run in runs]
            lost = [_lost(run, stage, key) for run in runs]
            if any(lost) or any(value is not None for value in values):
                columns[f"{_SHORT[stage]} {title}"] = [
                    "not finite" if gone else _number(value, write)
                    for value, gone in zip(values, lost, strict=True)
                ]
                break
    return columns


def result(run: Compared, stage: Stage, key: str) -> float | None:
    """What was logged over the last epoch."""
    value = ((run.found[stage.value] or {}).get("results") or {}).get(key)
    return None if value is None else float(value)


def _lost(run: Compared, stage: Stage, key: str) -> bool:
    """Whether something was logged that is no number."""
    results = (run.found[stage.value] or {}).get("results") or {}
    return key in results and results[key] is None


def groups_table(groups: Sequence[Group]) -> Table:
    """Repetitions together: the run is the unit, so the intervals are over runs."""
    walls = [[run.wall_s for run in group.runs if run.wall_s.size] for group in groups]
    rows: list[list[str | Cell]] = []
    for group, mine in zip(groups, walls, strict=True):
        medians = [float(np.median(one)) for one in mine]
        centre = float(np.exp(np.mean(np.log(medians)))) if medians else None
        reach = (
            f"{format.milliseconds(min(medians))} to {format.milliseconds(max(medians))}" if medians else ""
        )
        row = judged(walls[0], mine) if group is not groups[0] else None
        told = ["1", ""] if row is None else [ratio(row), interval(row)]
        verdict = BASELINE if row is None else row["verdict"] or format.UNKNOWN
        rows.append(
            [one_line(group.name), str(len(mine)), format.milliseconds(centre), reach, *told, str(verdict)]
        )
    head = ("group", "runs", "step ms", "its runs", "ratio", "95 % interval over runs", "it is")
    return Table(name="groups", title="Repetitions together", head=head, rows=rows)


def compared_table(name: str, title: str, rows: Sequence[tuple[str, Row]], part: Row, **more: Any) -> Table:
    """Quantities of two sides: A, B, their difference and ratio, and the verdict on it."""
    scale = 1e3 if part["per_sample"] else 1.0  # milliseconds then read in microseconds
    largest = max((abs(row[side] or 0.0) for _, row in rows for side in "ab"), default=0.0)
    decimals = format.digits(largest * scale)

    def written(value: float | None) -> str:
        return format.milliseconds(None if value is None else value * scale, decimals)

    cells: list[list[str | Cell]] = [
        [
            one_line(what),
            *(written(row[key]) for key in ("a", "b", "difference")),
            ratio(row),
            interval(row),
            row["verdict"] or format.UNKNOWN,
        ]
        for what, row in rows[:_MOST_ROWS]
    ]
    unit = "µs a sample" if part["per_sample"] else "ms"
    head = (more.pop("what"), f"A {unit}", f"B {unit}", "B - A", "B / A", "95 % interval", "B is")
    return Table(name=name, title=title, head=head, rows=cells, **more)


def results_table(document: Row) -> Table | None:
    """What both sides learned, in the last epoch."""
    told = {True: "yes", False: "no", None: "one run each"}
    rows = [
        [
            f"{NOUNS[stage]} {row['metric']}",
            *(_number(float(np.mean(row[side])) if row[side] else None, "{:.4g}".format) for side in "ab"),
            _number(row["difference"], "{:+.3g}".format),
            told[row["told_from_noise"]],
        ]
        for stage, found in document["results"].items()
        for row in found
    ]
    head = ("in the last epoch", "A", "B", "B - A", "told from noise")
    return Table(name="results", head=head, rows=rows) if rows else None


def differences(runs: Sequence[Run], shown: Sequence[Compared]) -> list[Table]:
    """Keys of configuration and environment that are not the same in all runs, a column for each run."""
    every: list[dict[str, dict[str, str]]] = [
        {table.name: dict(table.rows) for table in facts_tables(one.found, run)}  # type: ignore[arg-type]
        for run, one in zip(runs, shown, strict=True)
    ]
    tables = []
    for kind, title in (("config", "Configuration"), ("machine", "Environment")):
        facts: list[dict[str, str]] = [found.get(kind, {}) for found in every]
        keys = [key for key in dict.fromkeys(key for one in facts for key in one) if _differs(facts, key)]
        alone = [key for key in keys if sum(key in one for one in facts) == 1]
        alone = alone if len(alone) > _MOST_ALONE else []
        both = [key for key in keys if key not in set(alone)]
        for name, what, found in (
            ("differences", "what differs", both),
            ("alone", "in one run alone", alone),
        ):
            rows = [[key, *(_clipped(one.get(key, "")) for one in facts)] for key in found[:_MOST_KEYS]]
            if rows:
                more = f" (the first {_MOST_KEYS} of {len(found)})" if len(found) > len(rows) else ""
                tables.append(
                    Table(
                        name=f"{kind}-{name}",
                        title=f"{title}: {what}{more}",
                        head=("key", *(one_line(one.name) for one in shown)),
                        rows=rows,
                        words=len(shown) + 1,
                        folded=name == "alone",
                    )
                )
    return tables


def _differs(facts: Sequence[Mapping[str, str]], key: str) -> bool:
    return len({one.get(key) for one in facts}) > 1


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def ratio(row: Row) -> str:
    """B over A."""
    value = row.get("ratio")
    return format.UNKNOWN if value is None else f"{value:.3f}" if value < 100 else ">100"


def interval(row: Row) -> str:
    """`1.02 to 1.05`; a dash where nothing is known."""
    if row.get("low") is None or row.get("high") is None:
        return format.UNKNOWN
    low, high = (f"{row[key]:.3f}" if row[key] < 100 else ">100" for key in ("low", "high"))
    return f"{low} to {high}"


def _number(value: float | None, write: Callable[[float], str]) -> str:
    return format.UNKNOWN if value is None else write(value)


def _table(name: str, columns: Mapping[str, Sequence[str | Cell]]) -> Table:
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    title = "Median step, and its ratio to the baseline with a 95 % interval"
    return Table(name=name, title=title, head=list(columns), rows=rows)
