"""The owner of each moment on the host: a trace's ranges, modules and operators as one tiling of time.

Forward: a layer's turn goes on until the next layer starts, so it takes along the activations and functional
operations that follow it; a range that is no layer (a broadcast, say) only interrupts it. Backward: an
autograd node carries the sequence number of the operator that made it, and that operator ran in someone's
turn; `AccumulateGrad` has none and goes with the node before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from laptime.model import Account
from laptime.model.layers import OTHER_LAYER
from laptime.runs.importers import trace_names
from laptime.runs.importers.layer_events import OF_THE_LOOP, find_layers, host_ranges, user_ranges
from laptime.runs.importers.owners import LOSS, NOBODY, Owner
from laptime.runs.importers.trace_events import Event, Trace, backward_nodes, main_thread, outermost

_Moment = tuple[float, str, Event]
_FIRST = {"end": 0, "step": 1}  # of what happens at the same moment


@dataclass(frozen=True, slots=True)
class _Open:
    """A host range that has begun, whose turn it interrupted and the event that turn came from."""

    event: Event
    owner: Owner
    before: Owner
    source: Event | None


class Turns:
    """Owners of the host's time, in order: from `times[i]` on it is `owners[i]`'s turn."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.main = main_thread(trace)
        self._nodes = backward_nodes(trace)
        self._node_starts = [node.start for node in self._nodes]
        self._host_ranges = list(host_ranges(trace, self.main))
        self._layers, self.named = find_layers(trace, self.main, self._host_ranges, self._nodes)
        self.kinds = dict(self._layers.values())
        self._layer_starts = sorted(
            event.start for event in (*trace.modules, *trace.ranges) if id(event) in self._layers
        )
        self._makers = self._find_makers()
        frames = [module for module in trace.modules if module.thread == self.main] or user_ranges(
            trace, self.main
        )
        self._frames = list(outermost(frames))
        self._frame_starts = [frame.start for frame in self._frames]
        self.threads = {self.main, *(node.thread for node in self._nodes)}
        self.times: list[float] = []
        self.owners: list[Owner] = []
        self._continued: set[int] = set()  # places of turns that go on after an interruption
        self._waiting: list[tuple[int, Event]] = []  # backward turns whose layer is still to be found
        self._source: Event | None = None  # the layer or node that the last turn came from
        self._walk()
        self._resolve(self._numbers())

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

    # -- the walk ----------------------------------------------------------------------------------

    def _walk(self) -> None:
        inside: list[_Open] = []  # host ranges that are open: what runs in them is theirs
        done = False  # with the backward pass: what follows is the host's or the optimizer's
        accounts = {id(host_range): account for host_range, account in self._host_ranges}
        for moment, what, event in sorted(
            self._moments(), key=lambda entry: (entry[0], _FIRST.get(entry[1], 2))
        ):
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
                done = done and account not in OF_THE_LOOP
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
                self._turn(moment, LOSS if not done else NOBODY)
            elif what == "left":
                self._turn(moment, LOSS if not done and self._backward_follows(moment) else NOBODY)
            elif what == "operator":
                done = self._operator(event, done)

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
        elif closed.before.account is Account.BACKWARD and closed.source is not None:
            self._backward(moment, closed.source)
            self._continued.add(len(self.times) - 1)
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
        if closed.before.account not in (Account.FORWARD, Account.LOSS):
            return False
        aside = closed.owner.account in (Account.COMMUNICATION, Account.HOST)
        return aside and self._in_network(closed.event)

    def _backward(self, moment: float, node: Event) -> None:
        self._turn(moment, Owner(Account.BACKWARD, OTHER_LAYER), node, new=True)
        self._waiting.append((len(self.times) - 1, node))

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
        if trace_names.LOSS_OPERATOR.match(event.name):
            source = self._source
            self._turn(event.start, LOSS)
            if now.layer is not None and self.named != "operators" and self._in_network(event):
                self._turn(event.end, now, source)  # a network that computes its own loss goes on after it
                self._continued.add(len(self.times) - 1)
            return False
        makes = id(event) in self._makers
        if now.account is Account.LOSS and (self.named != "operators" or not makes):
            return done
        if now.account is Account.FORWARD and self.named != "operators":
            return done
        account = Account.FORWARD if makes else trace_names.operator_account(event.name, done)
        if account is not Account.FORWARD:
            self._turn(event.start, Owner(account))
            self._turn(event.end, NOBODY)
            return done
        layer = event.name if self.named == "operators" else OTHER_LAYER
        self._turn(event.start, Owner(Account.FORWARD, layer), event)
        return False

    def _in_network(self, event: Event) -> bool:
        place = bisect_right(self._frame_starts, event.start) - 1
        return place >= 0 and event.end <= self._frames[place].end

    def _turn(self, moment: float, owner: Owner, source: Event | None = None, *, new: bool = False) -> None:
        self._source = source
        if self.times and self.times[-1] >= moment:
            moment = self.times[-1]
            if self.owners[-1] == owner and not new:
                return
        self.times.append(moment)
        self.owners.append(owner)

    def _moments(self) -> Iterator[_Moment]:
        """Moments at which the owner can change: (when, what, event)."""
        starts: list[float] = []
        for moment in self._main_moments():
            starts.append(moment[0])
            yield moment
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
        for event, _ in self._host_ranges:
            yield event.start, "host", event
            yield event.end, "end", event
        for event in self._trace.ranges:
            if trace_names.STEP.match(event.name):
                yield event.start, "step", event
            elif trace_names.host_account(event.name) is not None:
                continue
            elif (
                event.thread == self.main and trace_names.LOSS.search(event.name) and event.end > event.start
            ):
                yield event.start, "loss", event
        modules = [module for module in self._trace.modules if module.thread == self.main]
        for event in outermost(modules):
            yield (
                (event.start, "loss", event)
                if trace_names.LOSS.search(event.name)
                else (event.end, "left", event)
            )
        for event in (*modules, *self._trace.ranges):
            if id(event) in self._layers:
                yield event.start, "layer", event
        operators = [operator for operator in self._trace.operators if operator.thread == self.main]
        for event in outermost(operators):
            if not event.node:
                yield event.start, "operator", event

    # -- backward ----------------------------------------------------------------------------------

    def _find_makers(self) -> set[int]:
        """Ids of the outermost operators that made a node of a backward pass: certainly forward."""
        wanted = {node.number for node in self._nodes}
        mine = [operator for operator in self._trace.operators if operator.thread == self.main]
        last = {
            operator.number: operator for operator in mine if operator.number in wanted and not operator.node
        }
        tops = [operator for operator in outermost(mine) if not operator.node]
        starts = [top.start for top in tops]
        makers = set()
        for number, operator in last.items():
            place = bisect_right(starts, operator.start) - 1
            if number >= 0 and place >= 0 and operator.end <= tops[place].end:
                makers.add(id(tops[place]))
        return makers

    def _numbers(self) -> dict[int, str]:
        """Layer by sequence number. An operator without a node carries the next node's: the last counts."""
        layers: dict[int, str] = {}
        for operator in self._trace.operators:
            if operator.number >= 0 and operator.thread == self.main and not operator.node:
                owner = self.at(operator.start)
                if owner.layer is not None and owner.account in (Account.FORWARD, Account.LOSS):
                    layers[operator.number] = owner.layer
        return layers

    def _resolve(self, numbers: Mapping[int, str]) -> None:
        before = OTHER_LAYER
        for place, node in self._waiting:
            if node.number >= 0:
                before = numbers.get(node.number, OTHER_LAYER)
            self.owners[place] = Owner(Account.BACKWARD, before)
