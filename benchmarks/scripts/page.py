"""The page that docs/ keeps: the table, what its columns mean, how every script was started."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from benchmarks.scripts.left_out import LEFT_OUT
from benchmarks.scripts.outcome import NOT_REPEATABLE, SAME, Outcome, Recorded
from benchmarks.tables import NOTHING, Table, percent

HEADER = (
    "script",
    "same results",
    "training steps",
    "epochs",
    "evaluation steps",
    "updates",
    "where training time went",
    "an update, bare",
    "slow-down",
    "whole process",
    "exit status",
)
NOTES = (
    "Same results: the losses and metrics that the script prints, compared as text in every round; how many "
    "there are in brackets.",
    "A count alone is what was recorded and what the script did; **2 of 3** is two recorded, three done. "
    "What it did is known from its arguments and data; updates are counted by a hook of the benchmark's own.",
    "Where training time went: the four largest accounts of at least 1 %, the first step left out.",
    "An update, bare: wall time from one optimizer update to the next, on average; evaluation is in it.",
    "Slow-down: processor time of the process from update to update, recorded against bare; median over the "
    "rounds, and their range. What others take on the machine is not in it, laptime's writer thread is.",
    "Whole process: wall time bare, and what recording adds with its start, its end and the machine's noise.",
)
PACKAGES = ("torch", "torchvision", "lightning", "transformers", "accelerate")
LARGEST = 4  # accounts in a cell
SMALL_SHARE = 0.01
NO_UPDATES = "no optimizer"


def page(outcomes: Sequence[Outcome], *, date: str, command: str, rounds: int) -> str:
    """Everything, as Markdown."""
    table = Table(title="What was recorded", header=HEADER, rows=[_row(one) for one in outcomes], notes=NOTES)
    parts = [
        "# Public training scripts, unedited",
        _introduction(date, command, rounds),
        _summary(outcomes),
        table.markdown(),
        "\n".join(["## How they were started", "", *map(_started, outcomes)]),
        "\n".join(["## What laptime said", "", *_said(outcomes)]),
        "\n".join(["## Left out", "", *(f"- {one.script}: {one.reason}." for one in LEFT_OUT)]),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(date: str, command: str, rounds: int) -> str:
    from laptime.recorder.backends import environment

    machine = environment()
    return (
        f"Measured on {date}: {machine['cpu']}, {machine['cores']} cores shared with other work, one thread, "
        f"Python {machine['python']}, {_versions()}.\n"
        f"`{command}` prints this page. It runs each script on made-up data in a copy of its folder, bare "
        f"and through `laptime run`, {_times(rounds)}. What is missing it says how to clone.\n"
        "Packages that the scripts need beyond laptime's own go into a folder beside it: "
        "`pip install --no-deps --target PACKAGES -r benchmarks/scripts/packages.txt`."
    )


def _times(rounds: int) -> str:
    return "once each" if rounds == 1 else f"in turns, {rounds} times each"


def _versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue  # it is in the folder beside, if anywhere
    return ", ".join(found)


def _summary(outcomes: Sequence[Outcome]) -> str:
    """How many of the scripts came out right, by column."""

    def count(right: Callable[[Outcome], bool]) -> str:
        return f"{sum(map(right, outcomes))} of {len(outcomes)}"

    unsteady = sum(one.same == NOT_REPEATABLE for one in outcomes)
    return (
        f"Exit status as without laptime: {count(lambda one: one.statuses[0] == one.statuses[1])} scripts. "
        f"Same results: {count(lambda one: one.same == SAME)}"
        + (f", {unsteady} not repeatable by itself. " if unsteady else ". ")
        + f"Steps, epochs, evaluation and updates all as the script made them: {count(_counts_right)}."
    )


def _counts_right(one: Outcome) -> bool:
    return one.recorded is not None and all(
        known is None or known == recorded for recorded, known in _counts(one, one.recorded)
    )


def _counts(one: Outcome, recorded: Recorded) -> list[tuple[int, int | None]]:
    work = one.case.work
    return [
        (recorded.steps, one.steps),
        (recorded.epochs, work.epochs),
        (recorded.validation, work.validation),
        (recorded.updates, one.updates // work.optimizers),
    ]


def _row(one: Outcome) -> list[str]:
    bare, status = one.statuses
    counts = (
        ["nothing"] * 4 if one.recorded is None else [_count(*pair) for pair in _counts(one, one.recorded)]
    )
    return [
        one.case.name,
        f"{one.same} ({one.results})",
        *counts,
        _accounts(one.recorded) if one.recorded else NOTHING,
        NO_UPDATES if one.bare_update_s is None else f"{one.bare_update_s * 1e3:,.1f} ms",
        _slowdown(one.slowdowns),
        f"{one.bare_seconds:.1f} s {one.added_seconds:+.1f} s".replace("-", "−"),
        f"{bare}" if bare == status else f"**{bare}, recorded {status}**",
    ]


def _count(recorded: int, known: int | None) -> str:
    return f"{recorded:,}" if known in (None, recorded) else f"**{recorded:,} of {known:,}**"


def _accounts(recorded: Recorded) -> str:
    named = [(name, share) for name, share in recorded.shares if share >= SMALL_SHARE]
    return ", ".join(f"{name} {share * 100:.0f} %" for name, share in named[:LARGEST]) or NOTHING


def _slowdown(ratios: Sequence[float]) -> str:
    if not ratios:
        return NOTHING
    if len(ratios) == 1:
        return percent(ratios[0] - 1.0, 0)
    low, high = (percent(value - 1.0, 0).removesuffix(" %") for value in (min(ratios), max(ratios)))
    return f"{percent(statistics.median(ratios) - 1.0, 0)} [{low}, {high}]"


def _started(one: Outcome) -> str:
    case = one.case
    path = f"{case.folder}/{case.script}".removeprefix("./")
    note = f": {case.note}" if case.note else ""
    command = f"{path} {case.arguments}".rstrip()
    return f"- **{case.name}**{note}. {case.repository}@{one.commit} `{command}`"


def _said(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        f"- **{one.case.name}**: {line}"
        for one in outcomes
        for line in (*one.said, *(one.recorded.notes if one.recorded else ()))
    ]
    return lines or ["Nothing: no warning that the bare run does not have, no note."]
