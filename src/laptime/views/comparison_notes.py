"""What must be said beside a comparison: how its intervals were made, and in what the sides differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from laptime.model.comparison import RUN_TO_RUN, Samples, compare_runs
from laptime.runs import Run
from laptime.views.format import name, percent, plural

_SAID: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "devices": lambda e: (e.get("device") or {}).get("name"),
    "torch versions": lambda e: e.get("torch"),
    "threads": lambda e: e.get("threads"),
    "environment variables": lambda e: (
        ", ".join(f"{k}={v}" for k, v in sorted((e.get("variables") or {}).items())) or "none"
    ),
}
Found = Mapping[str, Any]


def notes(document: Found, a: Sequence[Found], b: Sequence[Found]) -> list[str]:
    """One line each."""
    stage = document["train"] or document["validation"]
    said = [*_same(document), *_how(document), *_workload(document, stage), *_networks(stage, a, b)]
    return [*said, *_machines(a, b), *_states(a, b)]


def _same(document: Found) -> Iterator[str]:
    """A run is known by its id: a copy of it is the same run."""
    a, b = ({one["id"] for one in document[side]["runs"]} for side in "ab")
    if a == b:
        yield f"both sides are the same {'run' if len(a) == 1 else 'runs'}: they cannot differ"
    elif a & b:
        yield f"{plural(len(a & b), 'run')} of A {'is' if len(a & b) == 1 else 'are'} in B too"


def _how(document: Found) -> Iterator[str]:
    counts = [len(document[side]["runs"]) for side in "ab"]
    if max(counts) == 1:
        yield (
            "one run each: the intervals are over steps, drawn in blocks since consecutive steps are alike; "
            f"they cannot see what differs between two processes, so less than {percent(RUN_TO_RUN, 0)} is "
            "not called a difference; `laptime train --repeat` gives several runs"
        )
    elif min(counts) == 1:
        yield "one run against several: the intervals are over runs, by the spread of the several"
    else:
        yield f"{counts[0]} runs against {counts[1]}: the run is the unit, and the intervals are over runs"


def _workload(document: Found, stage: Found | None) -> Iterator[str]:
    if stage and stage["per_sample"]:
        batches = [f"{document[side]['batch']:g}" for side in "ab"]
        yield (
            f"A has {batches[0]} samples in a step (on each device), B {batches[1]}: accounts and layers are "
            "compared per sample"
        )


def _networks(stage: Found | None, a: Sequence[Found], b: Sequence[Found]) -> Iterator[str]:
    names = [sorted({_network(one) for one in side} - {""}) for side in (a, b)]
    if names[0] != names[1] and all(names):
        yield f"the networks differ: A is {', '.join(names[0])}, B {', '.join(names[1])}"
    if stage is None:
        return
    lost = {side for side, found in (("a", a), ("b", b)) if all("layers" in one["lost"] for one in found)}
    for side in sorted(lost):
        yield f"{side.upper()} lost its `layers` folder, so layers cannot be compared"
    for side, other in (("a", "b"), ("b", "a")):
        only = stage["only"][side]
        if only and not stage["layers"] and not stage["only"][other]:
            if other not in lost:
                yield f"{other.upper()} was recorded without layers, so layers cannot be compared"
        elif only:
            shown = ", ".join(map(name, only[:8])) + (f" and {len(only) - 8} more" if len(only) > 8 else "")
            yield f"only in {side.upper()}: {shown}"


def _network(found: Found) -> str:
    config = found["run"]["config"]
    network = config.get("network")
    return str(
        network.get("name", "") if isinstance(network, Mapping) else network or config.get("target") or ""
    )


def _machines(a: Sequence[Found], b: Sequence[Found]) -> Iterator[str]:
    for what, read in _SAID.items():
        values = [sorted({str(read(one["run"]["environment"])) for one in side}) for side in (a, b)]
        if values[0] != values[1]:
            yield f"the {what} differ: A {name(', '.join(values[0]))}, B {name(', '.join(values[1]))}"


def _states(a: Sequence[Found], b: Sequence[Found]) -> Iterator[str]:
    for side, found in (("A", a), ("B", b)):
        unfinished = [one for one in found if one["run"]["status"] != "finished"]
        if unfinished:
            states = ", ".join(sorted({one["run"]["status"] for one in unfinished}))
            yield f"{plural(len(unfinished), 'run')} of {side} did not finish ({states})"


# -- profiling -------------------------------------------------------------------------------------


def profiling(
    a: Sequence[Run], b: Sequence[Run], walls: Sequence[Sequence[Samples]]
) -> dict[str, Any] | None:
    """What profiling costs, where one side was profiled and the other was not: the thesis' first figure.

    There the training took 245 % longer with TensorFlow's profiler on (AlexNet), 235 % with VGG-11.
    """
    states = [_profiled(side) for side in (a, b)]
    if None in states or states[0] == states[1]:
        return None
    with_it, without = (0, 1) if states[0] else (1, 0)
    found = compare_runs(walls[without], walls[with_it])
    return {"with": "ab"[with_it], "without": "ab"[without], "slowdown": found.ratio - 1.0, **asdict(found)}


def _profiled(runs: Sequence[Run]) -> bool | None:
    """Whether every run was profiled, or none; None where they differ or do not say."""
    said = {(run.config.get("record") or {}).get("profile") for run in runs}
    found = said.pop() if len(said) == 1 else None
    return found if isinstance(found, bool) else None
