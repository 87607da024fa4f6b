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
    for one in trace.ranges:
        if one.thread != main or trace_names.STEP.match(one.name):
            continue
        while ends and ends[-1] <= one.start:
            ends.pop()
        if ends and one.end > ends[-1] + _ROUNDED:
            continue
        ends.append(one.end)
        account = trace_names.host_account(one.name)
        if account is not None:
            yield one, account


def user_ranges(trace: Trace, main: Any) -> list[Event]:
    """Ranges that someone named, not the profiler nor an instrument."""
    return [
        one
        for one in trace.ranges
        if one.thread == main
        and not trace_names.STEP.match(one.name)
        and not one.name.startswith(trace_names.OWN_MARKS)
        and trace_names.host_account(one.name) is None
    ]


def find_layers(
    trace: Trace, main: Any, hosts: Sequence[tuple[Event, Account]], nodes: Sequence[Event]
) -> tuple[dict[int, tuple[str, str]], str]:
    """(name, kind) of each event that starts a layer, by its id, and what the names are of."""
    modules = [one for one in trace.modules if one.thread == main]
    found = {
        id(one): (one.name.removeprefix(MODULE), _class(one))
        for one in leaves(modules)
        if not trace_names.LOSS.search(one.name)
    }
    heavy = {key: value for key, value in found.items() if not trace_names.is_light(value[1])}
    if found:
        return heavy or found, "modules"
    # A range around a backward pass, an update or the loading of a batch is a part of the loop.
    loop = [one.start for one, account in hosts if account in OF_THE_LOOP]
    loop = sorted([*loop, *(node.start for node in nodes)])
    ranges = [one for one in user_ranges(trace, main) if one.end > one.start]
    found = {id(one): (one.name, "range") for one in leaves(ranges) if _is_layer(one, loop)}
    return found, "ranges" if found else "operators"


def _is_layer(one: Event, loop: Sequence[float]) -> bool:
    if trace_names.LOSS.search(one.name) or "backward" in one.name.lower():
        return False
    return bisect_left(loop, one.start) == bisect_left(loop, one.end)


def _class(module: Event) -> str:
    """`Conv2d` of `nn.Module: Conv2d_0`."""
    return module.name.removeprefix(MODULE).rpartition("_")[0]
