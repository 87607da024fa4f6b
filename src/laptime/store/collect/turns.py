"""Whose turn it was on the host: a trace's ranges, modules and operators as one tiling of its time.

Forward: a layer's turn goes on until the next layer starts, so it takes along the activations and functional
operations that follow it. Backward: an autograd node carries the sequence number of the operator that made
it, and that operator ran in someone's turn; `AccumulateGrad` has none and goes with the node before it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from laptime.record import Account
from laptime.record.layers import LOSS_UNIT, OTHER_UNIT
from laptime.store.collect.events import EVALUATE, MODULE, STEP, Event, Trace, by_thread, leaves, outermost

# Modules without a weight matrix: they go along with the layer before them.
_LIGHT = re.compile(
    r"(Batch|Layer|Group|Instance|RMS|Local\w*|SyncBatch)Norm|\w*(ReLU|ELU|GELU|SiLU|Mish|Tanh|Sigmoid|Swish)|"
    r"\w*Dropout|\w*Pool|\w*Softmax|\w*Softplus|\w*Activation|Flatten|Unflatten|Identity|Upsample|\w*Shuffle|"
    r"\w*Pad|Fold|Unfold"
)
_LOSS = re.compile(r"loss|cross_entropy|criterion", re.IGNORECASE)
_LOSS_OPERATOR = re.compile(r"aten::\w*(loss|cross_entropy|kl_div)\w*$")
_OWN_MARKS = ("laptime ", "bench ")  # marks without a name of a layer
_DIMENSIONS = re.compile(r"[123]d$")
_HOST_TURNS = (
    (
        re.compile(r"enumerate\(DataLoader\)|dataloader|get_batch|next_batch", re.IGNORECASE),
        Account.DATA_WAIT,
    ),
    (re.compile(r"Optimizer\.step#|optimizer[._ ]?step", re.IGNORECASE), Account.UPDATE),
    (re.compile(r"Optimizer\.zero_grad#|zero_grad", re.IGNORECASE), Account.HOST),
    (re.compile(r"nccl:|gloo:|c10d|all_?reduce", re.IGNORECASE), Account.COMMUNICATION),
)
_COPY = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::pin_memory")
_UPDATE = ("aten::_foreach_", "aten::_fused_")
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")  # the loop looks at a number


@dataclass(frozen=True, slots=True)
class Owner:
    """What a moment is charged to; without a layer where it belongs to none."""

    account: Account
    layer: str | None = None


LOSS = Owner(Account.LOSS, LOSS_UNIT)
NOBODY = Owner(Account.UNEXPLAINED)
_Moment = tuple[float, str, Event]


class Turns:
    """Owners of the host's time, in order: from `times[i]` on it is `owners[i]`'s turn."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.main = _main_thread(trace)
        self._nodes = _nodes(trace)
        self._node_starts = [node.start for node in self._nodes]
        self._layers, self.named = self._find_layers()
        self.kinds = dict(self._layers.values())
        self._makers = self._find_makers()
        frames = [one for one in trace.modules if one.thread == self.main] or self._user_ranges()
        self._frames = list(outermost(frames))
        self._frame_starts = [one.start for one in self._frames]
        self.threads = {self.main, *(node.thread for node in self._nodes)}
        self.times: list[float] = []
        self.owners: list[Owner] = []
        self._waiting: list[tuple[int, Event]] = []  # backward turns whose layer is still to be found
        self._walk()
        self._resolve(self._numbers())

    def at(self, moment: float) -> Owner:
        """Whose turn it was."""
        place = bisect_right(self.times, moment) - 1
        return self.owners[place] if place >= 0 else NOBODY

    def between(self, begin: float, end: float) -> Iterator[tuple[float, Owner]]:
        """The turns of a stretch, the first from its begin on."""
        yield begin, self.at(begin)
        for place in range(bisect_right(self.times, begin), bisect_right(self.times, end)):
            yield self.times[place], self.owners[place]

    # -- layers ------------------------------------------------------------------------------------

    def _find_layers(self) -> tuple[dict[int, tuple[str, str]], str]:
        """(name, kind) of each event that starts a layer, by its id, and what the names are of."""
        modules = [one for one in self._trace.modules if one.thread == self.main]
        found = {
            id(one): (one.name.removeprefix(MODULE), _class(one))
            for one in leaves(modules)
            if not _LOSS.search(one.name)
        }
        heavy = {key: value for key, value in found.items() if not _light(value[1])}
        if found:
            return heavy or found, "modules"
        ranges = [one for one in self._user_ranges() if one.end > one.start]
        found = {id(one): (one.name, "range") for one in leaves(ranges) if self._is_layer(one)}
        return found, "ranges" if found else "operators"

    def _user_ranges(self) -> list[Event]:
        """Ranges that someone named, not the profiler nor an instrument."""
        return [
            one
            for one in self._trace.ranges
            if one.thread == self.main
            and not STEP.match(one.name)
            and not one.name.startswith(_OWN_MARKS)
            and _host_turn(one.name) is None
        ]

    def _is_layer(self, one: Event) -> bool:
        """A range of the forward pass that computes something: none that holds, or is, a backward pass."""
        if _LOSS.search(one.name) or "backward" in one.name.lower():
            return False
        return bisect_left(self._node_starts, one.start) == bisect_left(self._node_starts, one.end)

    # -- the walk ----------------------------------------------------------------------------------

    def _walk(self) -> None:
        inside: list[Event] = []  # host turns that are open: what runs in them is theirs
        done = False  # with the backward pass: what follows is the host's or the optimizer's
        for moment, what, event in sorted(self._moments(), key=lambda one: (one[0], one[1] != "end")):
            if what == "end":
                inside = [one for one in inside if one is not event]
                if not inside:
                    self._turn(moment, NOBODY)
            elif what == "host":
                inside.append(event)
                account = _host_turn(event.name) or Account.HOST
                self._turn(moment, Owner(account))
                done = done and account not in (Account.UPDATE, Account.DATA_WAIT)
            elif inside:
                continue
            elif what == "node":
                self._waiting.append((len(self.times), event))
                self._turn(moment, Owner(Account.BACKWARD, OTHER_UNIT))
                done = True
            elif what == "after":
                self._turn(moment, NOBODY)
            elif what == "layer":
                self._turn(moment, Owner(Account.FORWARD, self._layers[id(event)][0]))
                done = False
            elif what in ("loss", "left"):
                self._turn(moment, LOSS if not done else NOBODY)
            elif what == "operator":
                done = self._operator(event, done)

    def _operator(self, event: Event, done: bool) -> bool:
        """An outermost operator outside the backward pass: only where nobody's turn is open is it a turn."""
        now = self.at(event.start)
        if _LOSS_OPERATOR.match(event.name):
            self._turn(event.start, LOSS)
            if now.layer is not None and self.named != "operators" and self._in_network(event):
                self._turn(event.end, now)  # a network that computes its own loss goes on after it
            return False
        makes = id(event) in self._makers
        if now.account is Account.LOSS and (self.named != "operators" or not makes):
            return done
        if now.account is Account.FORWARD and self.named != "operators":
            return done
        account = Account.FORWARD if makes else _account(event.name, done)
        if account is not Account.FORWARD:
            self._turn(event.start, Owner(account))
            self._turn(event.end, NOBODY)
            return done
        layer = event.name if self.named == "operators" else OTHER_UNIT
        self._turn(event.start, Owner(Account.FORWARD, layer))
        return False

    def _in_network(self, event: Event) -> bool:
        place = bisect_right(self._frame_starts, event.start) - 1
        return place >= 0 and event.end <= self._frames[place].end

    def _turn(self, moment: float, owner: Owner) -> None:
        if self.times and self.times[-1] >= moment:
            moment = self.times[-1]
            if self.owners[-1] == owner:
                return
        self.times.append(moment)
        self.owners.append(owner)

    def _moments(self) -> Iterator[_Moment]:
        """What can change whose turn it is: (when, what, event)."""
        starts: list[float] = []
        for one in self._main_moments():
            starts.append(one[0])
            yield one
        starts.sort()
        last = float("-inf")
        for place, node in enumerate(self._nodes):
            yield node.start, "node", node
            last = max(last, node.end)
            more = place + 1 < len(self._nodes)
            limit = self._nodes[place + 1].start if more else float("inf")
            after = bisect_right(starts, node.start)
            if not more or (after < len(starts) and last <= starts[after] < limit):
                yield last, "after", node

    def _main_moments(self) -> Iterator[_Moment]:
        for one in self._trace.ranges:
            if one.thread == self.main and _host_turn(one.name) is not None:
                yield one.start, "host", one
                yield one.end, "end", one
            elif one.thread == self.main and _LOSS.search(one.name) and one.end > one.start:
                yield one.start, "loss", one
        modules = [one for one in self._trace.modules if one.thread == self.main]
        for one in outermost(modules):
            yield (one.start, "loss", one) if _LOSS.search(one.name) else (one.end, "left", one)
        for one in (*modules, *self._trace.ranges):
            if id(one) in self._layers:
                yield one.start, "layer", one
        operators = [one for one in self._trace.operators if one.thread == self.main]
        for one in outermost(operators):
            if not one.name.startswith(EVALUATE):
                yield one.start, "operator", one

    # -- backward ----------------------------------------------------------------------------------

    def _find_makers(self) -> set[int]:
        """Ids of the outermost operators that made a node of a backward pass: certainly forward."""
        wanted = {node.number for node in self._nodes}
        mine = [one for one in self._trace.operators if one.thread == self.main]
        last = {one.number: one for one in mine if one.number in wanted and not one.name.startswith(EVALUATE)}
        tops = [one for one in outermost(mine) if not one.name.startswith(EVALUATE)]
        starts = [one.start for one in tops]
        found = set()
        for number, one in last.items():
            place = bisect_right(starts, one.start) - 1
            if number >= 0 and place >= 0 and one.end <= tops[place].end:
                found.add(id(tops[place]))
        return found

    def _numbers(self) -> dict[int, str]:
        """Layer by sequence number. An operator without a node carries the next node's: the last counts."""
        found: dict[int, str] = {}
        for one in self._trace.operators:
            if one.number >= 0 and one.thread == self.main and not one.name.startswith(EVALUATE):
                owner = self.at(one.start)
                if owner.layer is not None and owner.account in (Account.FORWARD, Account.LOSS):
                    found[one.number] = owner.layer
        return found

    def _resolve(self, numbers: Mapping[int, str]) -> None:
        before = OTHER_UNIT
        for place, node in self._waiting:
            if node.number >= 0:
                before = numbers.get(node.number, OTHER_UNIT)
            self.owners[place] = Owner(Account.BACKWARD, before)


def _main_thread(trace: Trace) -> Any:
    """The thread that the profiler's steps are on; else the one with most work that is no backward pass."""
    for one in (*(one for one in trace.ranges if STEP.match(one.name)), *trace.modules):
        return one.thread
    work: dict[Any, float] = {}
    for thread, events in by_thread(trace.operators).items():
        tops = [one for one in outermost(events) if not one.name.startswith(EVALUATE)]
        work[thread] = sum(one.end - one.start for one in tops)
    return max(work, key=lambda one: work[one]) if work else None


def _nodes(trace: Trace) -> list[Event]:
    """The backward pass, node by node. A graph inside a node (checkpointing) is part of it."""
    found = []
    for events in by_thread(trace.operators).values():
        found += [one for one in outermost(events) if one.name.startswith(EVALUATE)]
    return sorted(found, key=lambda one: one.start)


def _host_turn(name: str) -> Account | None:
    return next((account for pattern, account in _HOST_TURNS if pattern.search(name)), None)


def _account(name: str, done: bool) -> Account:
    """Where an operator that is in no range and no module belongs."""
    if name.startswith("c10d::"):
        return Account.COMMUNICATION
    if name in _COPY:
        return Account.COPY
    if done or name in _READS:
        return Account.UPDATE if name.startswith(_UPDATE) else Account.HOST
    return Account.FORWARD


def _class(module: Event) -> str:
    """`Conv2d` of `nn.Module: Conv2d_0`."""
    return module.name.removeprefix(MODULE).rpartition("_")[0]


def _light(kind: str) -> bool:
    return _LIGHT.fullmatch(_DIMENSIONS.sub("", kind)) is not None
