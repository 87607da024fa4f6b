"""Hooks on networks, and what they share. Roots are watched always; layers only on the steps that are drawn.

Hooks are taken off, not switched off, for a bare step: a module with any hook leaves torch's fast call path.
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

from laptime.model import Phase
from laptime.recorder.autograd_graph import Boundary, Entries
from laptime.recorder.budget import Budget
from laptime.recorder.collectives import Collectives
from laptime.recorder.guard import RecordingPart, attempt, shielded
from laptime.recorder.layer_division import Division, Granularity, LayerUnit, has_parameters
from laptime.recorder.layer_hooks import discovering, entering, entering_late, mark_nodes
from laptime.recorder.live_workload import Reading
from laptime.recorder.loop_listener import LoopListener
from laptime.recorder.loss_end import LossStretch, holds_loss
from laptime.recorder.module_calls import around, before, release, undo_all, watch_forward
from laptime.recorder.optimizer_steps import Updates
from laptime.recorder.running_step import RunningStep, StepEvidence
from laptime.recorder.timeline import (
    BACKWARD,
    FORWARD,
    HOST,
    INPUT,
    INSTRUMENT,
    LOSS,
    LOSS_BACKWARD,
    RETURN,
    Timeline,
    backward_code,
    forward_code,
)
from laptime.recorder.torch_patches import Leave
from laptime.recorder.watched_networks import WatchedNetwork, updated_bytes

# A first pass in evaluation mode leaves out what only training calls (auxiliary heads), so discovery goes on
# until a training pass, or until this many passes have shown that none is coming.
MOST_DISCOVERY = 8
LONG_WALKS_S = 0.02  # over the graphs of one step
MANY_MARKS = 2000  # in one step: more than the layers of any network


def _nothing() -> None:
    pass


class NetworkHooks:
    """The hooks, and the state they share within a step."""

    def __init__(
        self,
        timeline: Timeline,
        step: RunningStep,
        loss: LossStretch,
        collectives: Collectives,
        *,
        granularity: Granularity,
        budget: Budget,
        reading: Reading,
        listener: LoopListener,
    ) -> None:
        self.timeline = timeline
        self.step = step
        self.loss = loss
        self.reading = reading  # of the operations of the first step
        self.entries = Entries()
        self.networks: list[WatchedNetwork] = []
        self.units: list[LayerUnit] = []
        self.updates = Updates(timeline, step, loss.close, listener)
        self.armed = False
        self.version = 0  # changes whenever the set of layers does
        self.other_threads = False  # a network was called in another thread than the recorded one
        self.trained = False  # a backward pass was seen in this recording
        self.boundaries: dict[int, Boundary] = {}  # of a backward pass, by the owner that begins there
        self._granularity = granularity
        self._collectives = collectives
        self._budget = budget
        self._listener = listener
        self._layer_undo: list[Callable[[], None]] = []
        self._lost = False  # a layer ran outside every forward pass
        self._update_weights: dict[int, dict[int, float]] = {}  # as they were last known
        self._weights_version = -1
        self._ended = False  # layers are not looked for any more

    # -- networks ----------------------------------------------------------------------------------------

    def add_network(self, name: str, root: nn.Module, *, prefix: str) -> WatchedNetwork:
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
        self.watch_entry(network, division.units[0])
        if not self._ended:
            self._discover(network)
        return network

    def watch_entry(self, network: WatchedNetwork, unit: LayerUnit) -> None:
        """Calls of this module are forward passes: the network's root, or a part that is called by itself."""
        unit.entry = True
        network.undo.append(
            around(
                unit.module,
                lambda: self.root_enter(network, unit),
                lambda output: self.root_exit(network, output),
            )
        )

    def rename(self, prefix: str) -> None:
        """Put a network's name before the layers of the only network so far: a second one has joined it."""
        for unit in self.units:
            if not unit.name.startswith(prefix):
                unit.name = prefix + unit.name
        self.version += 1

    def is_layer(self) -> NDArray[np.bool_]:
        """Whether each unit is a layer."""
        return np.array([unit.is_layer for unit in self.units], dtype=bool)

    def update_weights(self, index: int) -> dict[int, float]:
        """Bytes that an optimizer updates, by layer: the share by which its time is split."""
        weights = updated_bytes(self.networks, self.updates.charged_to(index))
        return weights or self._update_weights.get(index, {})  # the script may have freed the optimizer

    def _keep_weights(self) -> None:
        """Store the update weights while optimizers and networks still exist."""
        if self._weights_version != self.version or len(self._update_weights) < self.updates.places:
            self._weights_version = self.version
            self._update_weights |= {
                place: self.update_weights(place) for place in range(self.updates.places)
            }

    # -- finding their layers ----------------------------------------------------------------------------

    def _discover(self, network: WatchedNetwork) -> None:
        for unit in network.division.units[1:]:
            if not unit.shared:
                network.discovery.append(before(unit.module, discovering(self, network, unit)))
        network.discovery.append(lambda: None)

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
        earlier = self.timeline.owner & ~RETURN
        self.timeline.mark(INSTRUMENT)
        network.division.resolve()
        network.forwards += 1
        network.trained = network.trained or (network.root.training and torch.is_grad_enabled())
        self.version += 1
        self.timeline.give_back(earlier)

    def _end_discovery(self) -> None:
        """At the end of a step that showed all of a network: its layers are known."""
        ended = False
        for network in self.networks:
            if network.discovery and (network.trained or network.forwards >= MOST_DISCOVERY):
                undo_all(network.discovery)
                ended = True
        if ended:
            self.disarm()

    @property
    def discovering(self) -> bool:
        """Whether the layers of some network are being found."""
        return any(network.discovery for network in self.networks)

    def found_late(self, unit: LayerUnit) -> None:
        """A layer that only some forward passes use is called for the first time."""
        unit.is_layer = unit.called = True
        division = self.networks[unit.network].division
        division.call(unit)
        division.resolve()
        self.version += 1

    # -- marks on layers ---------------------------------------------------------------------------------

    def arm(self) -> None:
        """Put marks on the layers."""
        self.armed = True
        undo_all(self._layer_undo)
        seen: set[int] = set()
        for network in self.networks:
            for unit in [] if network.discovery else network.division.units[1:]:
                late = unit.candidate and not unit.called  # a layer that only some forward passes use
                if (unit.is_layer or late) and not unit.entry and id(unit.module) not in seen:
                    seen.add(id(unit.module))
                    enter = entering_late(self, unit) if late else entering(self, unit)
                    self._layer_undo.append(before(unit.module, enter))

    def disarm(self) -> None:
        """Take the marks off the layers."""
        self.armed = False
        undo_all(self._layer_undo)

    # -- forward -----------------------------------------------------------------------------------------

    def foreign(self) -> bool:
        """Whether this is another thread than the recorded one; the engine's, which recompute, are not."""
        if threading.get_ident() == self.timeline.thread or self.step.backward_depth:
            return False
        self.other_threads = True
        return True

    def root_enter(self, network: WatchedNetwork, unit: LayerUnit) -> None:
        """A forward pass begins, of a network or of a part that is called by itself."""
        if self.foreign() and not self._listener.other_thread():
            return
        step = self.step
        if not self.timeline.open:
            self.timeline.clear()  # before the first step nothing is kept
        first = not step.forward_depth and not step.backward_depth
        if first and unit.parent is not None:
            self._close_seam()
        elif first:
            self.loss.close()
        if first:
            self._listener.before_forward(unit)
        if first and self.armed and (len(self.timeline.owners) > MANY_MARKS or step.walked_s > LONG_WALKS_S):
            self._spare(network)
        if not step.backward_depth:
            step.enter_forward()
        if network.discovery:
            network.division.call(unit)
            if not self.reading.done:
                if not step.backward_depth:
                    attempt(RecordingPart.WORKLOAD, self.reading.begin_forward, network.root)
                self.reading_entered(unit)
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
            step.lose_layers()
            self.disarm()

    def _close_seam(self) -> None:
        """Code between two parts that are called one after the other goes to the last layer of the first."""
        owners = self.timeline.owners
        if len(owners) > 1 and self.loss.close(instead=owners[-2] | RETURN):
            self.entries.leave()

    def root_exit(self, network: WatchedNetwork, output: Any = None) -> None:
        """A forward pass ends; what follows is the loss until something else says otherwise."""
        step = self.step
        if step.backward_depth or self.foreign():
            return
        step.leave_forward()
        if not self.reading.done and not step.forward_depth:
            attempt(RecordingPart.WORKLOAD, self.reading.end_forward, raised=output is None)
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

    def called_alone(self, unit: LayerUnit) -> bool:
        """A layer was called outside every forward pass; whether its time is the network's."""
        if not has_parameters(unit.module):
            return False
        self.step.evidence.saw_forward(graded=torch.is_grad_enabled(), training=unit.module.training)
        self._lost = True  # look for the part that it belongs to
        return True

    # -- backward ----------------------------------------------------------------------------------------

    def enter_backward(self, outputs: Any, *, accumulates: bool) -> Leave:
        """A backward pass begins: on an instrumented step, mark where each layer's part does."""
        earlier = self.timeline.owner & ~RETURN
        first = attempt(RecordingPart.LAYERS, mark_nodes, self, outputs) if self.armed else BACKWARD
        undo = self._collectives.before_backward(outputs) if accumulates else None
        self.trained = True
        step = self.step
        self.timeline.mark(BACKWARD if first is None else first)
        step.enter_backward()
        stop_reading = self.read(Phase.BACKWARD)

        @shielded(RecordingPart.RECORDING)
        def leave(_: Any) -> None:
            stop_reading()
            step.leave_backward()
            if undo is not None:
                undo()
            # A gradient taken inside the loss (a penalty) goes back to the loss; a nested pass, to its layer.
            in_loss = not accumulates and earlier == LOSS and not step.backward_depth
            inside = step.backward_depth > 0 or in_loss
            self.timeline.mark_now((earlier if inside else HOST) | RETURN)
            if in_loss:
                self.loss.open(complete=False)

        return leave

    def reading_entered(self, unit: LayerUnit) -> None:
        """A module is called in a step whose operations are read."""
        if not self.reading.done:
            attempt(RecordingPart.WORKLOAD, self.reading.entered, unit)

    def read(self, phase: Phase) -> Callable[[], None]:
        """Read the operations that follow, if this step is read; returns what ends that."""
        reading = self.reading
        if reading.done or not attempt(RecordingPart.WORKLOAD, reading.enter, phase):
            return _nothing
        return partial(attempt, RecordingPart.WORKLOAD, reading.leave)

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
        if evidence.update:
            self._keep_weights()
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
        self.step.lose_layers()
        self.disarm()
        for network in self.networks:
            undo_all(network.discovery)
        self.entries.clear()
