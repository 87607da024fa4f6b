"""What must be known beside a comparison: how its intervals were made, and in what the sides differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from laptime.model.comparison import RUN_TO_RUN
from laptime.views.comparison.groups import configuration
from laptime.views.format import name, percent, plural

if TYPE_CHECKING:
    from laptime.views.comparison.sides import ComparisonView

_MOST_NAMES = 8
_MACHINE: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "devices": lambda e: (e.get("device") or {}).get("name"),
    "torch versions": lambda e: e.get("torch"),
    "threads": lambda e: e.get("threads"),
    "environment variables": lambda e: (
        ", ".join(f"{k}={v}" for k, v in sorted((e.get("variables") or {}).items())) or "none"
    ),
}


def notes(view: ComparisonView, *, same_code: bool) -> Iterator[str]:
    """The notes of a comparison, one line each."""
    yield from _same(view, same_code)
    yield from _how(view)
    yield from _workload(view)
    yield from _layers(view)
    for letter, side in (("A", view.a), ("B", view.b)):
        if len({configuration(run.recorded) for run in side}) > 1:
            yield f"the runs of {letter} differ in their configuration, which widens the intervals"
    for what, read in _MACHINE.items():
        values = [sorted({str(read(run.view.environment)) for run in side}) for side in (view.a, view.b)]
        if values[0] != values[1]:
            yield f"the {what} differ: A {name(', '.join(values[0]))}, B {name(', '.join(values[1]))}"
    for letter, side in (("A", view.a), ("B", view.b)):
        states = [run.recorded.status for run in side if run.recorded.status != "finished"]
        if states:
            listed_states = ", ".join(sorted(set(states)))
            yield f"{plural(len(states), 'run')} of {letter} did not finish ({listed_states})"


def listed(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Names in a row, those beyond the first few counted."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(name, names[:most])) + more


def _same(view: ComparisonView, same_code: bool) -> Iterator[str]:
    """A run is known by its id: a copy of it is the same run."""
    a, b = ({run.recorded.id for run in side} for side in (view.a, view.b))
    if a == b:
        yield f"both sides are the same {'run' if len(a) == 1 else 'runs'}: they cannot differ"
    elif a & b:
        yield f"{plural(len(a & b), 'run')} of A {'is' if len(a & b) == 1 else 'are'} in B too"
    elif same_code:
        yield "A and B repeat one configuration: what sets them apart is run-to-run noise"


def _how(view: ComparisonView) -> Iterator[str]:
    counts = [len(view.a), len(view.b)]
    if max(counts) == 1:
        yield (
            "one run each: the intervals are over steps and do not show run-to-run noise, so a difference "
            f"under {percent(RUN_TO_RUN, 0)} is not told; `laptime train --repeat` gives several runs"
        )
    elif min(counts) == 1:
        yield "one run against several: the intervals are over runs, by the spread of the several"
    else:
        yield f"{counts[0]} runs against {counts[1]}: the intervals are over runs"


def _workload(view: ComparisonView) -> Iterator[str]:
    stage = next(iter(view.stages.values()), None)
    if stage and stage.per_sample:
        a, b = (f"{batch:g}" for batch in view.batches if batch is not None)
        yield (
            f"A has {a} samples in a step (on each device), B {b}: accounts and layers are "
            "compared per sample"
        )
    names = [sorted({_network(run.recorded.config) for run in side} - {""}) for side in (view.a, view.b)]
    if names[0] != names[1] and all(names):
        yield f"the networks differ: A is {', '.join(names[0])}, B {', '.join(names[1])}"


def _network(config: Mapping[str, Any]) -> str:
    network = config.get("network")
    return str(
        network.get("name", "") if isinstance(network, Mapping) else network or config.get("target") or ""
    )


def _layers(view: ComparisonView) -> Iterator[str]:
    stage = next(iter(view.stages.values()), None)
    if stage is None:
        return
    lost = [all("layers" in run.view.lost for run in side) for side in (view.a, view.b)]
    for letter, gone in zip("AB", lost, strict=True):
        if gone:
            yield f"{letter} lost its `layers` folder, so layers cannot be compared"
    for side, other in ((0, 1), (1, 0)):
        only = stage.only[side]
        if only and not stage.layers and not stage.only[other]:
            if not lost[other]:
                yield f"{'AB'[other]} was recorded without layers, so layers cannot be compared"
        elif only:
            yield f"only in {'AB'[side]}: {listed(only)}"
