"""Owners of kernels launched by other threads than the loop's and autograd's: replicas, servers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from laptime.model import Account
from laptime.model.layers import OTHER_LAYER
from laptime.runs.importers import trace_names
from laptime.runs.importers.owners import COPY, NOBODY, Owner
from laptime.runs.importers.trace_events import Event, Trace, by_thread, leaves, outermost


class OtherThreads:
    """A launch is of the operator around it on its thread, and of the layer that the range there names.

    Where neither is around it, a kernel is forward if the trace holds no backward pass, and unexplained else.
    """

    def __init__(self, trace: Trace, known: Iterable[Any], named: str) -> None:
        self._named = named
        inference = trace.host_known and not any(operator.node for operator in trace.operators)
        self._unnamed = Owner(Account.FORWARD, OTHER_LAYER) if inference else NOBODY
        mine = set(known)
        operators = by_thread(operator for operator in trace.operators if operator.thread not in mine)
        ranges = by_thread(event for event in trace.ranges if event.thread not in mine)
        self._operators = {thread: _Spans(outermost(events)) for thread, events in operators.items()}
        self._ranges = {thread: _Spans(leaves(events)) for thread, events in ranges.items()}

    def owner(self, kernel: Event, launch: Event) -> Owner:
        """The owner of a kernel, by what its thread ran at launch; a copy outside operators is a copy."""
        operator = self._around(self._operators, launch)
        named = self._around(self._ranges, launch)
        account = None if named is None else trace_names.host_account(named.name)
        if account is not None:
            return Owner(account)
        if operator is not None:
            account = trace_names.operator_account(operator.name, False)
        elif named is not None:
            account = Account.FORWARD
        if account is Account.FORWARD:
            return Owner(account, self._layer(operator, named))
        if account is None:
            return COPY if kernel.kind == "copy" else self._unnamed
        return Owner(account)

    def _layer(self, operator: Event | None, named: Event | None) -> str:
        if self._named == "ranges" and named is not None:
            return named.name
        return operator.name if self._named == "operators" and operator is not None else OTHER_LAYER

    @staticmethod
    def _around(spans: dict[Any, _Spans], launch: Event) -> Event | None:
        return spans[launch.thread].around(launch.start) if launch.thread in spans else None


class _Spans:
    """Events of one thread, none in another."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = list(events)
        self._starts = [event.start for event in self._events]

    def around(self, moment: float) -> Event | None:
        place = bisect_right(self._starts, moment) - 1
        return self._events[place] if place >= 0 and moment < self._events[place].end else None
