"""The answer of a search over plans: the plans that were looked for, the frontier, the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from laptime.files.text import one_line
from laptime.render.html.page import Page, Section, Tile
from laptime.simulate.search import Search, highest_price, latest_s
from laptime.simulate.training import Simulation
from laptime.views.figures.plan_frontier import plan_frontier
from laptime.views.format import figures, long_duration, plural
from laptime.views.plan_search import search_table, search_words
from laptime.views.table import Table, text_of

ASSUMED = (
    "Plans are ranked by the unfavourable end of their intervals.",
    "Every plan has the same samples in an update, and is taken to need as many epochs.",
    "All nodes of a plan are paid for, also where it leaves devices idle.",
)


def plan_page(found: Search, most: int) -> Page:
    """What a search among at most so many plans found."""
    first = found.fastest
    epochs = plural(first.epochs or 1, "epoch")
    return Page(
        title=one_line(f"{first.network}: {epochs} of {first.samples or 0:,} samples"),
        subtitle=f"{first.global_batch:,} samples in an update, {first.precision}; simulated, not measured",
        tiles=list(_tiles(found)),
        sections=[
            section
            for section in (
                Section.of("best", "Fastest and cheapest", plan_frontier(found)),
                Section.of("plans", "Plans", _broken(search_table(found, every=True))),
                Section.of("limits", "What it rests on", bullets=(*_told(found, most), *ASSUMED)),
            )
            if not section.empty
        ],
    )


def _tiles(found: Search) -> Iterator[Tile]:
    yield _tile("fastest", found.fastest)
    if found.cheapest is not None:
        yield _tile("cheapest", found.cheapest)
    if found.deadline_s is None:
        return
    name = f"cheapest within {found.deadline_s / 3600:,.4g} h"
    if found.cheapest_in_time is not None:
        yield _tile(name, found.cheapest_in_time)
    elif found.cheapest is None:
        yield Tile(name=name, value="no price", note="the clusters have none; choose another", tone="fair")
    else:
        note = f"the fastest takes {long_duration(latest_s(found.fastest))} at the latest"
        yield Tile(name=name, value="none", note=note, tone="bad")


def _tile(name: str, made: Simulation) -> Tile:
    value = long_duration(latest_s(made))
    if made.dollars is not None:
        value += f", ${figures(highest_price(made))}"
    where = f"{plural(made.plan.workers, 'device')} of {made.cluster.name}"
    return Tile(
        name=name, value=f"≤ {value}", note=one_line(f"{_breakable(made.plan.describe())} on {where}")
    )


def _breakable(plan: str) -> str:
    """A plan's text, which a narrow page may break after each degree."""
    return plan.replace(",", ", ")


def _broken(table: Table) -> Table:
    return replace(table, rows=[[_breakable(text_of(row[0])), *row[1:]] for row in table.rows])


def _told(found: Search, most: int) -> Iterator[str]:
    """What became of the plans, and what limits the fastest."""
    yield search_words(found)[-1]
    if found.there_are > most:
        yield f"there are more plans than the {most:,} of one question; ask for fewer nodes or one cluster"
    yield f"the fastest is limited by {found.fastest.bottleneck}"
