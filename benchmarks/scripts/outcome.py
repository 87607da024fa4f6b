"""What several bare and recorded executions of a script say together."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scripts.case import Case
from benchmarks.scripts.execution import Execution

REPORT = "laptime: the run is in"  # what follows on standard error is laptime's summary
SAME, DIFFERENT, NOT_REPEATABLE, NONE_PRINTED = "yes", "**NO**", "not repeatable", "none printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What laptime wrote down of one execution."""

    steps: int
    epochs: int
    validation: int
    updates: int
    shares: tuple[tuple[str, float], ...]  # of training time, largest first
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A line of the table."""

    case: Case
    commit: str
    steps: int | None  # training batches that the script made
    same: str  # whether what the script printed is the same
    results: int  # printed numbers that were compared
    statuses: tuple[int, int]  # of the bare and of the recorded process
    recorded: Recorded | None
    updates: int  # by the witness, in the recorded process and its children
    slowdowns: tuple[float, ...]  # recorded / bare processor time from update to update, for each round
    bare_update_s: float | None
    bare_seconds: float
    added_seconds: float  # of the whole process: imports, start, closing
    said: tuple[str, ...]  # lines on standard error that the bare run does not have


def judge(case: Case, commit: str, bare: Sequence[Execution], recorded: Sequence[Execution]) -> Outcome:
    """Compare the rounds."""
    last = recorded[-1]
    between = [(b.between_updates, r.between_updates) for b, r in zip(bare, recorded, strict=True)]
    pairs = [(b, r) for b, r in between if b and r]
    return Outcome(
        case=case,
        commit=commit,
        steps=_steps(case, last),
        same=compare(case, bare, recorded),
        results=len(results(case, bare[0])),
        statuses=(bare[-1].status, last.status),
        recorded=read(last.run) if last.run else None,
        updates=sum(len(made) for made in last.updates),
        slowdowns=tuple(r.processor_s / b.processor_s for b, r in pairs),
        bare_update_s=statistics.median(b.wall_s for b, _ in pairs) if pairs else None,
        bare_seconds=statistics.median(one.seconds for one in bare),
        added_seconds=statistics.median(r.seconds - b.seconds for b, r in zip(bare, recorded, strict=True)),
        said=_said(bare, last),
    )


def results(case: Case, execution: Execution) -> list[str]:
    """The numbers that the script printed, as text: equal to the last digit or not at all."""
    found = re.finditer(case.results, execution.output + _own_errors(execution), re.MULTILINE)
    return [group for match in found for group in (match.groups() or (match.group(),)) if group]


def _steps(case: Case, execution: Execution) -> int | None:
    known = case.work.steps
    if not isinstance(known, str):
        return known
    printed = re.search(known, execution.output)
    return int(printed.group(1)) if printed else None


def compare(case: Case, bare: Sequence[Execution], recorded: Sequence[Execution]) -> str:
    """Whether the same was printed; a script that does not repeat itself tells nothing."""
    expected = results(case, bare[0])
    if not expected:
        return NONE_PRINTED
    if any(results(case, one) != expected for one in bare):
        return NOT_REPEATABLE
    return SAME if all(results(case, one) == expected for one in recorded) else DIFFERENT


def _said(bare: Sequence[Execution], recorded: Execution) -> tuple[str, ...]:
    """Warnings, and lines of laptime's, that the bare runs do not have."""
    usual = {_shape(line) for one in bare for line in one.errors.splitlines()}
    lines = [line for line in _own_errors(recorded).splitlines() if "Warning" in line or "laptime" in line]
    return tuple(line for line in lines if _shape(line) not in usual)


def _own_errors(execution: Execution) -> str:
    """What is on standard error before laptime's summary."""
    return execution.errors.partition(REPORT)[0]


def _shape(line: str) -> str:
    """A line without file names and numbers, which differ between any two runs."""
    return re.sub(r"\S*\.py\S*|\S*/\S+|[\d.:]+", "0", line)


def read(path: Path) -> Recorded:
    """The run directory, through laptime's own reader."""
    from laptime.api import load
    from laptime.model import Stage
    from laptime.views.run_document import content

    run = load(path)
    document = content(run)
    training = [step for step in run.steps if step.stage is Stage.TRAIN]
    accounts = (document["train"] or {}).get("accounts", [])
    shares = sorted(((one["account"], one["share"] or 0.0) for one in accounts), key=lambda one: -one[1])
    return Recorded(
        steps=len(training),
        epochs=len({step.epoch for step in training}),
        validation=len(run.steps) - len(training),
        updates=run.summary.get("optimizer_steps") or 0,
        shares=tuple(shares),
        notes=tuple(document["notes"]),
    )
