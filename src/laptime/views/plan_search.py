"""A search over plans: its table and sentences, and what `laptime simulate --search --json` writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from laptime.estimate.choose_device import money
from laptime.files.text import one_line
from laptime.simulate.search import Search
from laptime.simulate.training import Simulation
from laptime.views.format import (
    cells,
    duration,
    figures,
    long_duration,
    percent,
    plural,
    step_unit,
    training_unit,
)
from laptime.views.simulation import plan_text, simulation_document
from laptime.views.table import Cells, Column, Table, table_of

SHOWN = 12
_GIB = 2.0**30
_WORDS = {"in time": "cheapest within the deadline"}


def picked(found: Search) -> dict[str, Simulation]:
    """What was looked for, by name."""
    named = {
        "fastest": found.fastest,
        "cheapest": found.cheapest,
        "in time": found.cheapest_in_time,
    }
    return {name: made for name, made in named.items() if made is not None}


def search_document(found: Search) -> dict[str, Any]:
    """What was looked for, the plans that no other beats in time and money, then all, the fastest first."""
    return {
        "deadline_s": found.deadline_s,
        "picked": {name: simulation_document(made) for name, made in picked(found).items()},
        "frontier": [simulation_document(made) for made in found.frontier],
        "plans": [simulation_document(made) for made in found.plans],
        **{name: getattr(found, name) for name in ("considered", "there_are", "too_large", "slower")},
    }


def search_table(found: Search, *, every: bool) -> Table:
    """What was looked for and the frontier of time and money; the fastest others up to a screenful."""
    names: dict[int, list[str]] = {}
    for name, made in picked(found).items():
        names.setdefault(id(made), []).append(name)
    first = [*picked(found).values(), *found.frontier]
    shown = {id(made) for made in [*first, *found.plans][: None if every else max(SHOWN, len(first))]}
    rows = [made for made in found.plans if id(made) in shown]
    unit = step_unit([made.step_s for made in rows])
    columns: list[Cells] = []

    def add(title: str, texts: Iterable[str], **how: Any) -> None:
        columns.append((Column(title=title, **how), list(texts)))

    add("plan", (one_line(plan_text(made.plan)) for made in rows), words=True)
    if len({made.cluster.name for made in found.plans}) > 1:
        add("cluster", (one_line(made.cluster.name) for made in rows), words=True)
    add("workers", (f"{made.plan.workers:,}" for made in rows))
    add("batch", (f"{made.batch:,}" for made in rows), priority=6, meaning="batch: samples of a replica")
    add(f"step {unit.name}", (figures(made.step_s / unit.seconds) for made in rows), priority=5)
    add("needs GiB", (f"{made.memory.reserved / _GIB:,.1f}" for made in rows), priority=7)
    whole = [made.training_s for made in rows]
    if known := [value for value in whole if value is not None]:
        long = training_unit(known)
        add(f"training, {long.name}", cells(whole, 2, over=long.seconds))
    add("±", (percent(made.interval, 0) for made in rows), priority=4)
    if any(made.dollars is not None for made in rows):
        add("$", cells([made.dollars for made in rows], 2))
    add("", (", ".join(names.get(id(made), ())) for made in rows), words=True, narrows=1)
    left = len(found.plans) - len(rows)
    notes = [f"{left:,} more; --all shows them"] if left else []
    bold = [place for place, made in enumerate(rows) if id(made) in names]
    return table_of("search", columns, bold=bold, notes=notes)


def search_words(found: Search) -> list[str]:
    """What was looked for in words, and what became of the plans."""
    words = [f"{_WORDS.get(name, name)}: {_choice(made)}" for name, made in picked(found).items()]
    if found.deadline_s is not None and found.cheapest_in_time is None:
        words.append(f"no plan with a price surely trains within {long_duration(found.deadline_s)}")
    of_all = f" of {found.there_are:,}, evenly chosen" if found.there_are > 1.5 * found.considered else ""
    words.append(
        f"{plural(found.considered, 'plan')} considered{of_all}: {found.too_large:,} need too much memory, "
        f"{found.slower:,} compute longer than others take in all"
    )
    return words


def _choice(made: Simulation) -> str:
    told = f"{made.plan.describe()} on {plural(made.nodes, 'node')} of {made.cluster.name}"
    whole = made.training_s
    if whole is None:
        low, high = (duration(end) for end in made.interval_s)
        return f"{told}: {low} to {high} a step"
    low, high = (long_duration(whole * (1 + sign * made.interval)) for sign in (-1, 1))
    told = f"{told}: {low} to {high}"
    return told if made.dollars is None else f"{told}, {money(made.dollars)}"
