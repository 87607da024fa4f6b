"""Hooks on networks, and what they share. Roots are watched always; layers only on the steps that are drawn.

A layer is marked at its call in the forward pass and at its first node in the backward pass. Its hooks are
what a mark costs, so each has what it needs at hand in its closure. They are taken off, not switched off, for
a bare step: a module with any hook leaves torch's fast call path.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from laptime.model import Layer, Phase
from laptime.recorder.autograd_graph import Boundary, Entries, graph_roots
from laptime.recorder.backends import Clock
from laptime.recorder.budget import Budget
from laptime.recorder.collectives import Collectives
from laptime.recorder.guard import RecordingPart, attempt, failed, shielded
from laptime.recorder.layer_division import (
    Division,
    Granularity,
    LayerUnit,
    WatchedNetwork,
    has_parameters,
)
from laptime.recorder.live_workload import Reading
from laptime.recorder.loss_end import LossStretch, holds_loss
from laptime.recorder.optimizer_steps import Updates
from laptime.recorder.timeline import (
    BACKWARD,
    FORWARD,
    HOST,
    INPUT,
    INSTRUMENT,
    LOSS,
    LOSS_BACKWARD,
    RETURN,
    UNITS,
    LoopListener,
    RunningStep,
    StepEvidence,
    Timeline,
    backward_code,
    forward_code,
    in_engine_thread,
)
from laptime.recorder.torch_patches import Entering, Leave, release, undo_all, watch, watch_forward

# A first pass in evaluation mode leaves out what only training calls (auxiliary heads), so discovery goes on
# until a training pass, or until this many passes have shown that none is coming.
MOST_DISCOVERY = 8
LONG_WALKS_S = 0.02  # over the graphs of one step
MANY_MARKS = 2000  # in one step: more than the layers of any network


class NetworkHooks:
    """The hooks, and the state they share within a step."""

    def __init__(
        self,
        clock: Clock,
        *,
        granularity: Granularity,
        budget: Budget,
        reading: Reading,
        listener: LoopListener,
    ) -> None:
        self.timeline = timeline = Timeline(clock)
        self.step = step = RunningStep()
        self.loss = LossStretch(timeline, step)
        self.collectives = Collectives(timeline, self.loss, step)
        self.reading = reading  # of the operations of the first step
        self.entries = Entries()  # who owns which nodes of the autograd graph
        self.networks: list[WatchedNetwork] = []
        self.units: list[LayerUnit] = []
        self.updates = Updates(timeline, step, self.loss.close, listener)
        self.armed = False
        self.version = 0  # changes whenever the set of layers does
        self.trained = False  # a backward pass was seen in this recording
        self._other_threads = False  # a network was called in another thread than the recorded one
        self._boundaries: dict[int, Boundary] = {}  # of a backward pass, by the owner that begins there
        self._granularity = granularity
        self._budget = budget
        self._listener = listener
        self._layer_undo: list[Callable[[], None]] = []
        self._lost = False  # a layer ran outside every forward pass
        self._update_weights: dict[int, dict[int, float]] = {}  # as they were last known
        self._weights_version = -1
        self._ended = False  # layers are not looked for any more

    # -- networks ----------------------------------------------------------------------------------------

    def add_network(self, name: str, root: nn.Module, *, prefix: str) -> None:
        """Watch a network. Its layers are decided after its first forward pass."""
        division = Division(
            root,
            granularity=self._granularity,
            network=len(self.networks),
            prefix=prefix,
            first=len(self.units),
        )
        network = WatchedNetwork(name, division)
        known = {id(unit.module) for unit in self.units}
        self.units.extend(division.units)
        self.networks.append(network)
        for unit in division.units[1:]:
            unit.shared = id(unit.module) in known  # a module of two networks belongs to the first
        self._watch_entry(network, division.units[0])
        if not self._ended:
            self._discover(network)

    def _watch_entry(self, network: WatchedNetwork, unit: LayerUnit) -> None:
        """Calls of this module are forward passes: the network's root, or a part that is called by itself."""
        unit.entry = True
        undo = watch(
            unit.module,
            lambda _: self.root_enter(network, unit),
            lambda _, __, output: self.root_exit(network, output),
        )
        network.undo.append(undo)

    def name_first(self) -> None:
        """Put the first network's name before its layers: a second one has joined it."""
        for unit in self.networks[0].division.units:
            unit.name = f"{self.networks[0].name}.{unit.name}"
        self.version += 1

    @property
    def divisions(self) -> list[Division]:
        """Of the networks whose layers are known."""
        return [network.division for network in self.networks if network.division.resolved]

    def layers(self) -> dict[int, Layer]:
        """The layers of all networks by unit index, in the order of their first calls."""
        claimed: set[int] = set()
        return {unit: layer for each in self.divisions for unit, layer in each.describe(claimed).items()}

    def is_layer(self) -> NDArray[np.bool_]:
        return np.array([unit.is_layer for unit in self.units], dtype=bool)

    def parameter_layers(self) -> dict[int, str]:
        """The name of its layer by the id of each parameter."""
        claimed: set[int] = set()
        return {
            id(parameter): self.units[owner].name
            for division in self.divisions
            for owner, parameters in division.parameters_by_layer(claimed).items()
            if owner >= 0
            for parameter in parameters
        }

    def update_weights(self, index: int) -> dict[int, float]:
        """Bytes that an optimizer updates, by layer: the share by which its time is split."""
        groups = [group for optimizer in self.updates.charged_to(index) for group in optimizer.param_groups]
        mine = {id(p) for group in groups for p in group["params"] if p.requires_grad}
        weights: dict[int, float] = {}
        claimed: set[int] = set()
        for division in self.divisions:
            for owner, parameters in division.parameters_by_layer(claimed).items():
                size = sum(p.numel() * p.element_size() for p in parameters if id(p) in mine)
                if size:
                    weights[owner] = weights.get(owner, 0.0) + size
        return weights or self._update_weights.get(index, {})  # the script may have freed the optimizer

    # -- finding their layers ----------------------------------------------------------------------------

    def _discover(self, network: WatchedNetwork) -> None:
        for unit in network.division.units[1:]:
            if not unit.shared:
                network.discovery.append(watch(unit.module, self._discovering(network, unit)))
        network.discovery.append(lambda: None)

    def _discovering(self, network: WatchedNetwork, unit: LayerUnit) -> Entering:
        """The hook of every module while layers are being discovered."""
        forward, backward = forward_code(unit.layer), backward_code(unit.layer)

        def discover(_: tuple[Any, ...]) -> None:
            if unit.entry or self._foreign():
                return  # handled by its own hook
            if not self.step.forward_depth and not self.step.backward_depth:
                if has_parameters(unit.module):  # else a metric or a criterion that lives in the module tree
                    self._watch_entry(network, unit)
                    self.root_enter(network, unit)
                return
            network.division.call(unit)
            self.reading.entered(unit)
            self.timeline.mark(backward if self.step.backward_depth else forward)
            self.entries.enter(backward)

        return discover

    def search(self) -> None:
        """Look again, during the coming step, for parts of the networks that are called by themselves."""
        if self._ended:
            return
        for network in self.networks:
            if not network.discovery and network.searches < MOST_DISCOVERY:
                network.searches += 1
                self.disarm()
                self._discover(network)

    def _resolve(self, network: WatchedNetwork) -> None:
        earlier = self.timeline.owner
        self.timeline.mark(INSTRUMENT)
        network.division.resolve()
        network.forwards += 1
        network.trained = network.trained or (network.root.training and torch.is_grad_enabled())
        self.version += 1
        self.timeline.give_back(earlier)

    def _end_discovery(self) -> None:
        """At the end of a step that showed all of a network: its layers are known."""
        for network in self.networks:
            if network.discovery and (network.trained or network.forwards >= MOST_DISCOVERY):
                undo_all(network.discovery)
                self.disarm()

    @property
    def discovering(self) -> bool:
        """Whether the layers of some network are being found."""
        return any(network.discovery for network in self.networks)

    # -- marks on layers ---------------------------------------------------------------------------------

    def arm(self) -> None:
        self.armed = True
        undo_all(self._layer_undo)
        seen: set[int] = set()
        for network in self.networks:
            for unit in [] if network.discovery else network.division.units[1:]:
                late = unit.candidate and not unit.called  # a layer that only some forward passes use
                if (unit.is_layer or late) and not unit.entry and id(unit.module) not in seen:
                    seen.add(id(unit.module))
                    enter = self._entering_late(unit) if late else self._entering(unit)
                    self._layer_undo.append(watch(unit.module, enter))

    def disarm(self) -> None:
        self.armed = False
        undo_all(self._layer_undo)

    def _entering(self, unit: LayerUnit) -> Entering:
        """The hook of a layer: from its call on, time is charged to it."""
        forward, backward = forward_code(unit.layer), backward_code(unit.layer)
        timeline, entries, step = self.timeline, self.entries, self.step
        mark, owners = timeline.mark, timeline.owners

        def enter(args: tuple[Any, ...]) -> None:
            if self._other_threads and self._foreign():
                return
            if step.backward_depth:
                mark(backward)  # a forward call during a backward pass recomputes: activation checkpointing
            elif owners[-1] == INPUT | RETURN:
                owners[-1] = forward  # what ran before the first layer is the first layer's: no second mark
            elif step.forward_depth or self._called_alone(unit):
                mark(forward)
            else:
                return
            entries.enter(backward, args[0].grad_fn if args and isinstance(args[0], torch.Tensor) else None)

        return enter

    def _called_alone(self, unit: LayerUnit) -> bool:
        """A layer was called outside every forward pass; whether its time is the network's."""
        if not has_parameters(unit.module):
            return False
        self.step.evidence.saw_forward(graded=torch.is_grad_enabled(), training=unit.module.training)
        self._lost = True  # look for the part that it belongs to
        return True

    def _entering_late(self, unit: LayerUnit) -> Entering:
        """The hook of a possible layer that only some forward passes use."""
        enter = self._entering(unit)

        def enter_late(args: tuple[Any, ...]) -> None:
            if self._other_threads and self._foreign():
                return
            alone = not self.step.forward_depth and not self.step.backward_depth
            if alone and not has_parameters(unit.module):
                return  # a metric, outside every forward pass
            if not unit.is_layer:
                division = self.networks[unit.network].division
                division.call(unit)
                division.resolve()
                self.version += 1
            enter(args)

        return enter_late

    def _foreign(self) -> bool:
        """Whether this is another thread than the recorded one; the engine's, which recompute, are not."""
        if threading.get_ident() == self.timeline.thread or self.step.backward_depth:
            return False
        self._other_threads = True
        return True

    # -- forward -----------------------------------------------------------------------------------------

    def root_enter(self, network: WatchedNetwork, unit: LayerUnit) -> None:
        """A forward pass begins, of a network or of a part that is called by itself."""
        if self._foreign() and not self._listener.other_thread():
            return
        step, owners = self.step, self.timeline.owners
        if not self.timeline.open:
            self.timeline.clear()  # before the first step nothing is kept
        first = not step.forward_depth and not step.backward_depth
        if first:
            if unit.parent is None:
                self.loss.close()
            elif len(owners) > 1 and self.loss.close(instead=owners[-2] | RETURN):
                self.entries.leave()  # code between two parts goes to the last layer of the first
            self._listener.before_forward(unit)
            if self.armed and (len(owners) > MANY_MARKS or step.walked_s > LONG_WALKS_S):
                self._spare(network)
        if not step.backward_depth:
            step.forward_depth += 1
        if network.discovery:
            network.division.call(unit)
            if not step.backward_depth:
                self.reading.begin_forward(network.root)
            self.reading.entered(unit)
        elif not self.armed:
            if first:
                self.timeline.mark(FORWARD)
            return
        if unit.candidate or unit.is_layer:  # a layer itself: compiled, or a parameter is its own
            code = backward_code(unit.layer) if step.backward_depth else forward_code(unit.layer)
            self.timeline.mark(code)
            self.entries.enter(backward_code(unit.layer))
        elif first:
            self.timeline.give_back(INPUT)
            self.entries.enter(INPUT)

    def _spare(self, network: WatchedNetwork) -> None:
        """Stop marking layers in a step with so many forward passes that the overhead is too high."""
        if network.discovery and network.trained:
            self._end_discovery()
        step, marks = self.step, len(self.timeline.owners)
        passed_s = time.perf_counter() - step.began
        if not step.perturbed and self._budget.too_dear(marks, walked_s=step.walked_s, passed_s=passed_s):
            step.complete = False
            self.disarm()

    def root_exit(self, network: WatchedNetwork, output: Any = None) -> None:
        """A forward pass ends; what follows is the loss until something else says otherwise."""
        step = self.step
        if step.backward_depth or self._foreign():
            return
        step.forward_depth = max(0, step.forward_depth - 1)
        if not self.reading.done and not step.forward_depth:
            self.reading.end_forward(raised=output is None)
        if network.discovery:
            attempt(RecordingPart.LAYERS, self._resolve, network)
        if step.forward_depth:
            return
        graded = torch.is_grad_enabled()
        step.evidence.saw_forward(graded=graded, training=network.root.training)
        if output is None or not graded:  # it has raised, or nobody will ask for gradients
            self.timeline.mark(HOST)
            return
        self.timeline.mark(LOSS)
        self.entries.enter(LOSS_BACKWARD, output.grad_fn if isinstance(output, torch.Tensor) else None)
        self.loss.open(complete=holds_loss(output))

    # -- backward ----------------------------------------------------------------------------------------

    @shielded(RecordingPart.RECORDING)
    def enter_backward(self, outputs: Any, *_: Any, accumulate_grad: bool = True, **__: Any) -> Leave | None:
        """A backward pass begins, or a gradient is taken by hand: that is returned, not accumulated.

        On an instrumented step, mark where each layer's part does.
        """
        step = self.step
        if self.timeline.elsewhere() and not (step.backward_depth and in_engine_thread()):
            return None
        if not step.backward_depth:
            self.loss.close(roots=graph_roots(outputs))
            if accumulate_grad:
                self._listener.before_backward()
        earlier = self.timeline.owner
        first = attempt(RecordingPart.LAYERS, self._mark_nodes, outputs) if self.armed else BACKWARD
        undo = self.collectives.before_backward(outputs) if accumulate_grad else None
        self.trained = True
        self.timeline.mark(BACKWARD if first is None else first)
        step.evidence.backward = True
        step.backward_depth += 1
        reading = not self.reading.done and self.reading.enter(Phase.BACKWARD)

        @shielded(RecordingPart.RECORDING)
        def leave(_: Any) -> None:
            if reading:
                self.reading.leave()
            step.backward_depth = max(0, step.backward_depth - 1)
            if undo is not None:
                undo()
            # A gradient taken inside the loss (a penalty) goes back to the loss; a nested pass, to its layer.
            in_loss = not accumulate_grad and earlier == LOSS and not step.backward_depth
            inside = step.backward_depth > 0 or in_loss
            self.timeline.mark_now((earlier if inside else HOST) | RETURN)
            if in_loss:
                self.loss.open(complete=False)

        return leave

    def _mark_nodes(self, outputs: Any) -> int:
        """Put a prehook on the first node of each layer; returns the owner of the very first."""
        roots = graph_roots(outputs)
        searching = self.discovering
        nodes = None if searching else self.entries.known(roots)
        if nodes is None:
            self.timeline.mark(INSTRUMENT)
            began = time.perf_counter()
            nodes = self.entries.boundaries(roots, self._no_layer if searching else None)
            self.step.walked_s += time.perf_counter() - began
        known = self._boundaries
        for code, node in nodes:
            boundary = known.get(code)
            if boundary is None:
                boundary = known[code] = self._boundary(code)
            boundary.put_on(node)
        return nodes[0][0] if nodes else BACKWARD

    def _no_layer(self, code: int) -> bool:
        return code >= UNITS and not self.units[(code - UNITS) // 2].is_layer

    def _boundary(self, code: int) -> Boundary:
        owners, mark, step = self.timeline.owners, self.timeline.mark, self.step

        def hook(_: Any) -> None:
            # Outside a watched pass (a retained graph, run after the recording) this does nothing.
            try:
                if step.backward_depth and owners[-1] != code:
                    mark(code)
            except Exception as error:
                failed(RecordingPart.LAYERS, error)

        return Boundary(hook)

    # -- steps -------------------------------------------------------------------------------------------

    def next_step(self) -> StepEvidence:
        """Reset for the next step; returns what happened in the one that ended."""
        evidence = self.step.next_step()
        self.updates.next_step()
        if evidence.backward or not evidence.graded:
            self.entries.clear()
        else:
            self.entries.keep()
        attempt(RecordingPart.LAYERS, self._next_search, evidence)
        return evidence

    def _next_search(self, evidence: StepEvidence) -> None:
        self._end_discovery()
        places = self.updates.places
        if evidence.update and (self._weights_version != self.version or len(self._update_weights) < places):
            self._weights_version = self.version  # stored while optimizers and networks still exist
            self._update_weights |= {place: self.update_weights(place) for place in range(places)}
        if evidence.backward and not evidence.forward:  # it may be called by `forward`
            for network in self.networks:
                watch_forward(type(network.root))
        if self._lost or not evidence.forward:
            self._lost = False
            self.search()

    def detach(self) -> None:
        """Leave no hook behind, whatever fails on the way."""
        actions: list[Callable[[], None]] = [self.disarm, self.loss.end, self.updates.detach]
        actions += [partial(undo_all, network.discovery) for network in self.networks]
        actions += [partial(undo_all, network.undo) for network in self.networks]
        for action in [*actions, release]:
            attempt(RecordingPart.RECORDING, action)

    def end_layers(self) -> None:
        """Go on without layers: their marks have failed."""
        self._ended = True
        self.step.complete = False
        self.disarm()
        for network in self.networks:
            undo_all(network.discovery)
        self.entries.clear()
