"""Which events of a trace start a layer, and which ranges are something else."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from laptime.model import Account
from laptime.runs.importers import trace_names
from laptime.runs.importers.trace_events import MODULE, Event, Trace, leaves

OF_THE_LOOP = (Account.UPDATE, Account.DATA_WAIT)
_ROUNDED = 2.0  # microseconds by which a range may seem to outlive the one around it


def host_ranges(trace: Trace, main: Any) -> Iterator[tuple[Event, Account]]:
    """A thread's ranges that are no layers. One that outlives the range around it is not of this thread."""
    ends: list[float] = []
    for event in trace.ranges:
        if event.thread != main or trace_names.STEP.match(event.name):
            continue
        while ends and ends[-1] <= event.start:
            ends.pop()
        if ends and event.end > ends[-1] + _ROUNDED:
            continue
        ends.append(event.end)
        account = trace_names.host_account(event.name)
        if account is not None:
            yield event, account


def user_ranges(trace: Trace, main: Any) -> list[Event]:
    """Ranges that someone named, not the profiler nor an instrument."""
    return [
        event
        for event in trace.ranges
        if event.thread == main
        and not trace_names.STEP.match(event.name)
        and not event.name.startswith(trace_names.OWN_MARKS)
        and trace_names.host_account(event.name) is None
    ]


def find_layers(
    trace: Trace, main: Any, hosts: Sequence[tuple[Event, Account]], nodes: Sequence[Event]
) -> tuple[dict[int, tuple[str, str]], str]:
    """(name, kind) of each event that starts a layer, by its id, and what the names are of."""
    modules = [module for module in trace.modules if module.thread == main]
    layers = {
        id(module): (module.name.removeprefix(MODULE), _class(module))
        for module in leaves(modules)
        if not trace_names.LOSS.search(module.name)
    }
    heavy = {key: value for key, value in layers.items() if not trace_names.is_light(value[1])}
    if layers:
        return heavy or layers, "modules"
    # A range around a backward pass, an update or the loading of a batch is a part of the loop.
    loop = [event.start for event, account in hosts if account in OF_THE_LOOP]
    loop = sorted([*loop, *(node.start for node in nodes)])
    ranges = [event for event in user_ranges(trace, main) if event.end > event.start]
    layers = {id(event): (event.name, "range") for event in leaves(ranges) if _is_layer(event, loop)}
    return layers, "ranges" if layers else "operators"


def _is_layer(one: Event, loop: Sequence[float]) -> bool:
    if trace_names.LOSS.search(one.name) or "backward" in one.name.lower():
        return False
    return bisect_left(loop, one.start) == bisect_left(loop, one.end)


def _class(module: Event) -> str:
    """`Conv2d` of `nn.Module: Conv2d_0`."""
    return module.name.removeprefix(MODULE).rpartition("_")[0]
