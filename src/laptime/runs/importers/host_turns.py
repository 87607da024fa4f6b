"""The owner of each moment on the host: a trace's ranges, modules and operators as one tiling of time.

Forward: a layer's turn goes on until the next layer starts, so it takes along the activations and functional
operations that follow it; a range that is no layer (a broadcast, say) only interrupts it. Backward: an
autograd node carries the sequence number of the operator that made it, and that operator ran in someone's
turn; `AccumulateGrad` has none and goes with the node before it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from laptime.model import Account
from laptime.model.layers import OTHER_LAYER
from laptime.runs.importers.trace_events import (
    LOSS,
    LOSS_NAME,
    LOSS_OPERATOR,
    MODULE,
    NOBODY,
    STEP,
    Event,
    Owner,
    Spans,
    Trace,
    host_account,
    leaves,
    operator_account,
    outermost,
)

_Moment = tuple[float, str, Event]
_FIRST = {"end": 0, "step": 1}  # of what happens at the same moment
_ROUNDED = 2.0  # microseconds by which a range may seem to outlive the one around it
_OF_THE_LOOP = (Account.UPDATE, Account.DATA_WAIT)
_OWN_MARKS = ("laptime ", "bench ")  # marks without a name of a layer
# Modules without a weight matrix: they go along with the layer before them.
_LIGHT = re.compile(
    r"((Batch|Layer|Group|Instance|RMS|Local\w*|SyncBatch)Norm|"
    r"\w*(ReLU|ELU|GELU|SiLU|Mish|Tanh|Sigmoid|Swish)|"
    r"\w*Dropout|\w*Pool|\w*Softmax|\w*Softplus|\w*Activation|Flatten|Unflatten|Identity|Upsample|\w*Shuffle|"
    r"\w*Pad|Fold|Unfold)([123]d)?"
)


@dataclass(frozen=True, slots=True)
class _Open:
    """A host range that has begun, whose turn it interrupted and the event that turn came from."""

    event: Event
    owner: Owner
    before: Owner
    source: Event | None


class Turns:
    """Owners of the host's time, in order: from `times[i]` on it is `owners[i]`'s turn.

    `named` says what layers are: modules, ranges or operators; `kinds` their classes by their names.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.main = trace.main_thread
        self._modules = [module for module in trace.modules if module.thread == self.main]
        self._operators = [operator for operator in trace.operators if operator.thread == self.main]
        self._tops = [operator for operator in outermost(self._operators) if not operator.node]
        self._nodes = trace.backward_nodes
        self._node_starts = [node.start for node in self._nodes]
        self._host_ranges = list(self._find_host_ranges())
        user_ranges = [
            event
            for event in trace.ranges
            if event.thread == self.main
            and not STEP.match(event.name)
            and not event.name.startswith(_OWN_MARKS)
            and host_account(event.name) is None
        ]
        self._layers, self.named = self._find_layers(user_ranges)
        self.kinds = dict(self._layers.values())
        self._layer_starts = sorted(
            event.start for event in (*trace.modules, *trace.ranges) if id(event) in self._layers
        )
        self._makers = self._find_makers()
        self._frames = Spans(outermost(self._modules or user_ranges))
        self.threads = {self.main, *(node.thread for node in self._nodes)}
        self.times: list[float] = []
        self.owners: list[Owner] = []
        self._continued: set[int] = set()  # places of turns that go on after an interruption
        self._waiting: list[tuple[int, Event]] = []  # backward turns whose layer is still to be found
        self._source: Event | None = None  # the layer or node that the last turn came from
        self._walk()
        self._resolve()

    def at(self, moment: float) -> Owner:
        """The owner at a moment."""
        place = bisect_right(self.times, moment) - 1
        return self.owners[place] if place >= 0 else NOBODY

    def between(self, begin: float, end: float) -> Iterator[tuple[float, Owner]]:
        """The turns of a stretch, the first from its begin on."""
        yield begin, self.at(begin)
        for place in range(bisect_right(self.times, begin), bisect_left(self.times, end)):
            yield self.times[place], self.owners[place]

    def calls(self, begin: float, end: float) -> Counter[Owner]:
        """How often it became someone's turn; one that goes on after an interruption is the same."""
        places = range(bisect_left(self.times, begin), bisect_left(self.times, end))
        return Counter(self.owners[place] for place in places if place not in self._continued)

    # -- which events are layers -------------------------------------------------------------------

    def _find_host_ranges(self) -> Iterator[tuple[Event, Account]]:
        """The main thread's ranges that are no layers. One that outlives the range around it is another's."""
        ends: list[float] = []
        for event in self._trace.ranges:
            if event.thread != self.main or STEP.match(event.name):
                continue
            while ends and ends[-1] <= event.start:
                ends.pop()
            if ends and event.end > ends[-1] + _ROUNDED:
                continue
            ends.append(event.end)
            account = host_account(event.name)
            if account is not None:
                yield event, account

    def _find_layers(self, user_ranges: list[Event]) -> tuple[dict[int, tuple[str, str]], str]:
        """(name, kind) of each event that starts a layer, by its id, and what the names are of."""
        layers = {}
        for module in leaves(self._modules):
            name = module.name.removeprefix(MODULE)  # `Conv2d_0`
            if not LOSS_NAME.search(module.name):
                layers[id(module)] = name, name.rpartition("_")[0]
        heavy = {key: value for key, value in layers.items() if not _LIGHT.fullmatch(value[1])}
        if layers:
            return heavy or layers, "modules"
        # A range around a backward pass, an update or the loading of a batch is a part of the loop.
        loop = [event.start for event, account in self._host_ranges if account in _OF_THE_LOOP]
        loop = sorted([*loop, *self._node_starts])
        for event in leaves(event for event in user_ranges if event.end > event.start):
            within = bisect_left(loop, event.start) == bisect_left(loop, event.end)
            if within and not LOSS_NAME.search(event.name) and "backward" not in event.name.lower():
                layers[id(event)] = event.name, "range"
        return layers, "ranges" if layers else "operators"

    def _find_makers(self) -> set[int]:
        """Ids of the outermost operators that made a node of a backward pass: certainly forward."""
        wanted = {node.number for node in self._nodes if node.number >= 0}
        last = {each.number: each for each in self._operators if each.number in wanted and not each.node}
        tops = Spans(self._tops)
        return {id(top) for operator in last.values() if (top := tops.around(operator)) is not None}

    # -- the walk ----------------------------------------------------------------------------------

    def _walk(self) -> None:
        inside: list[_Open] = []  # host ranges that are open: what runs in them is theirs
        done = False  # with the backward pass: what follows is the host's or the optimizer's
        accounts = {id(host_range): account for host_range, account in self._host_ranges}
        moments = sorted(self._moments(), key=lambda entry: (entry[0], _FIRST.get(entry[1], 2)))
        for moment, what, event in moments:
            if what == "end":
                self._close(moment, event, inside)
            elif what == "step":
                done = False
                if not inside:
                    self._turn(moment, NOBODY)
            elif what == "host":
                account = accounts[id(event)]
                before = self.owners[-1] if self.owners else NOBODY
                inside.append(_Open(event, Owner(account), before, self._source))
                self._turn(moment, Owner(account))
                done = done and account not in _OF_THE_LOOP
            elif inside:
                continue
            elif what == "node":
                self._backward(moment, event)
                done = True
            elif what == "after":
                self._turn(moment, NOBODY)
            elif what == "layer":
                self._turn(moment, Owner(Account.FORWARD, self._layers[id(event)][0]), event)
                done = False
            elif what == "loss":
                self._turn(moment, NOBODY if done else LOSS)
            elif what == "left":
                self._turn(moment, LOSS if not done and self._backward_follows(moment) else NOBODY)
            elif what == "operator":
                done = self._operator(event, done)

    def _moments(self) -> Iterator[_Moment]:
        """Moments at which the owner can change: (when, what, event)."""
        main = list(self._main_moments())
        yield from main
        starts = sorted(moment for moment, _, _ in main)
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
        for event, _ in self._host_ranges:
            yield event.start, "host", event
            yield event.end, "end", event
        for event in self._trace.ranges:
            if STEP.match(event.name):
                yield event.start, "step", event
            elif host_account(event.name) is not None or event.thread != self.main:
                continue
            elif LOSS_NAME.search(event.name) and event.end > event.start:
                yield event.start, "loss", event
        for event in outermost(self._modules):
            loss = LOSS_NAME.search(event.name)
            yield (event.start, "loss", event) if loss else (event.end, "left", event)
        for event in (*self._modules, *self._trace.ranges):
            if id(event) in self._layers:
                yield event.start, "layer", event
        for event in self._tops:
            yield event.start, "operator", event

    def _turn(self, moment: float, owner: Owner, source: Event | None = None, *, new: bool = False) -> None:
        self._source = source
        if self.times and self.times[-1] >= moment:
            moment = self.times[-1]
            if self.owners[-1] == owner and not new:
                return
        self.times.append(moment)
        self.owners.append(owner)

    def _close(self, moment: float, event: Event, inside: list[_Open]) -> None:
        """The end of a host range: the turn is the outer range's again, or whose it was before."""
        place = next((place for place, open_range in enumerate(inside) if open_range.event is event), None)
        if place is None:
            return
        closed = inside.pop(place)
        if place < len(inside):
            return  # a range that began in it is still open
        if inside:
            self._turn(moment, inside[-1].owner)
        elif not self._goes_on(closed):
            self._turn(moment, NOBODY)
        else:
            if closed.before.account is Account.BACKWARD and closed.source is not None:
                self._backward(moment, closed.source)
            else:
                self._turn(moment, closed.before, closed.source)
            self._continued.add(len(self.times) - 1)

    def _goes_on(self, closed: _Open) -> bool:
        """Whether the turn that a host range interrupted goes on after it.

        It does inside the layer's or node's own range, and after communication or the like elsewhere in the
        network. Loading a batch or updating ends a forward pass that is not around them.
        """
        around = closed.source
        if around is not None and around.start <= closed.event.start and closed.event.end <= around.end:
            return True
        forward = closed.before.account in (Account.FORWARD, Account.LOSS)
        aside = closed.owner.account in (Account.COMMUNICATION, Account.HOST)
        return forward and aside and self._frames.around(closed.event) is not None

    def _backward_follows(self, moment: float) -> bool:
        """Whether a backward pass comes next, before any layer: what is in between is the loss."""
        node = bisect_left(self._node_starts, moment)
        layer = bisect_left(self._layer_starts, moment)
        if node == len(self._node_starts):
            return False
        return layer == len(self._layer_starts) or self._node_starts[node] <= self._layer_starts[layer]

    def _operator(self, event: Event, done: bool) -> bool:
        """An outermost operator outside the backward pass: only where nobody's turn is open is it a turn."""
        now = self.at(event.start)
        by_operator = self.named == "operators"
        if LOSS_OPERATOR.match(event.name):
            source = self._source
            self._turn(event.start, LOSS)
            if now.layer is not None and not by_operator and self._frames.around(event) is not None:
                self._turn(event.end, now, source)  # a network that computes its own loss goes on after it
                self._continued.add(len(self.times) - 1)
            return False
        makes = id(event) in self._makers
        if now.account is Account.LOSS and not (by_operator and makes):
            return done
        if now.account is Account.FORWARD and not by_operator:
            return done
        account = Account.FORWARD if makes else operator_account(event.name, done)
        if account is not Account.FORWARD:
            self._turn(event.start, Owner(account))
            self._turn(event.end, NOBODY)
            return done
        self._turn(event.start, Owner(Account.FORWARD, event.name if by_operator else OTHER_LAYER), event)
        return False

    # -- backward ----------------------------------------------------------------------------------

    def _backward(self, moment: float, node: Event) -> None:
        self._turn(moment, Owner(Account.BACKWARD, OTHER_LAYER), node, new=True)
        self._waiting.append((len(self.times) - 1, node))

    def _resolve(self) -> None:
        """Give each backward turn the layer in whose turn the operator with its sequence number ran."""
        layers: dict[int, str] = {}
        for operator in self._operators:  # one without a node carries the next node's number: the last counts
            if operator.number >= 0 and not operator.node:
                owner = self.at(operator.start)
                if owner.layer is not None and owner.account in (Account.FORWARD, Account.LOSS):
                    layers[operator.number] = owner.layer
        layer = OTHER_LAYER
        for place, node in self._waiting:
            if node.number >= 0:
                layer = layers.get(node.number, OTHER_LAYER)
            self.owners[place] = Owner(Account.BACKWARD, layer)
