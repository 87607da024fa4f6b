"""Layer hooks: on a layer's call in the forward pass, on its first node in the backward pass.

This is what a mark costs, so each hook has what it needs at hand in its closure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from laptime.recorder.autograd_graph import Boundary, Entries, graph_roots
from laptime.recorder.guard import RecordingPart, failed
from laptime.recorder.layer_division import LayerUnit, has_parameters
from laptime.recorder.module_calls import Entering
from laptime.recorder.running_step import RunningStep
from laptime.recorder.timeline import (
    BACKWARD,
    INPUT,
    INSTRUMENT,
    RETURN,
    UNITS,
    Timeline,
    backward_code,
    forward_code,
)
from laptime.recorder.watched_networks import WatchedNetwork


class HookState(Protocol):
    """What the hooks on layers share: `NetworkHooks`."""

    timeline: Timeline
    step: RunningStep
    entries: Entries  # who owns which nodes of the autograd graph
    units: list[LayerUnit]
    networks: list[WatchedNetwork]
    boundaries: dict[int, Boundary]  # of a backward pass, by the owner that begins there
    other_threads: bool  # a network was called in another thread than the recorded one

    def foreign(self) -> bool: ...
    def called_alone(self, unit: LayerUnit) -> bool: ...
    def watch_entry(self, network: WatchedNetwork, unit: LayerUnit) -> None: ...
    def root_enter(self, network: WatchedNetwork, unit: LayerUnit) -> None: ...
    def found_late(self, unit: LayerUnit) -> None: ...
    def reading_entered(self, unit: LayerUnit) -> None: ...


def entering(hooks: HookState, unit: LayerUnit) -> Entering:
    """The hook of a layer: from its call on, time is charged to it."""
    forward, backward = forward_code(unit.layer), backward_code(unit.layer)
    timeline, entries, step = hooks.timeline, hooks.entries, hooks.step
    mark, owners = timeline.mark, timeline.owners

    def enter(args: tuple[Any, ...]) -> None:
        if hooks.other_threads and hooks.foreign():
            return
        if step.backward_depth:
            mark(backward)  # a forward call during a backward pass recomputes: activation checkpointing
        elif owners[-1] == INPUT | RETURN:
            owners[-1] = forward  # what ran before the first layer is the first layer's: no second mark
        elif step.forward_depth or hooks.called_alone(unit):
            mark(forward)
        else:
            return
        entries.enter(backward, args[0].grad_fn if args and isinstance(args[0], torch.Tensor) else None)

    return enter


def entering_late(hooks: HookState, unit: LayerUnit) -> Entering:
    """The hook of a possible layer that only some forward passes use."""
    enter = entering(hooks, unit)

    def enter_late(args: tuple[Any, ...]) -> None:
        if hooks.other_threads and hooks.foreign():
            return
        alone = not hooks.step.forward_depth and not hooks.step.backward_depth
        if alone and not has_parameters(unit.module):
            return  # a metric, outside every forward pass
        if not unit.is_layer:
            hooks.found_late(unit)
        enter(args)

    return enter_late


def discovering(hooks: HookState, network: WatchedNetwork, unit: LayerUnit) -> Entering:
    """The hook of every module while layers are being discovered."""
    forward, backward = forward_code(unit.layer), backward_code(unit.layer)

    def discover(_: tuple[Any, ...]) -> None:
        if unit.entry or hooks.foreign():
            return  # handled by its own hook
        if not hooks.step.forward_depth and not hooks.step.backward_depth:
            if not has_parameters(unit.module):
                return  # a metric or a criterion that lives in the module tree
            hooks.watch_entry(network, unit)
            hooks.root_enter(network, unit)
            return
        network.division.call(unit)
        hooks.reading_entered(unit)
        hooks.timeline.mark(backward if hooks.step.backward_depth else forward)
        hooks.entries.enter(backward)

    return discover


def mark_nodes(hooks: HookState, outputs: Any) -> int:
    """Put a prehook on the first node of each layer; returns the owner of the very first."""
    entries = hooks.entries
    roots = graph_roots(outputs)
    searching = any(network.discovery for network in hooks.networks)
    boundaries = None if searching else entries.known(roots)
    if boundaries is None:
        hooks.timeline.mark(INSTRUMENT)
        began = time.perf_counter()
        boundaries = entries.boundaries(roots, _no_layer(hooks.units) if searching else None)
        hooks.step.walked(time.perf_counter() - began)
    known = hooks.boundaries
    for code, node in boundaries:
        boundary = known.get(code)
        if boundary is None:
            boundary = known[code] = _boundary(hooks, code)
        boundary.put_on(node)
    return boundaries[0][0] if boundaries else BACKWARD


def _no_layer(units: Sequence[LayerUnit]) -> Callable[[int], bool]:
    return lambda code: code >= UNITS and not units[(code - UNITS) // 2].is_layer


def _boundary(hooks: HookState, code: int) -> Boundary:
    owners, mark, step = hooks.timeline.owners, hooks.timeline.mark, hooks.step

    def hook(_: Any) -> None:
        # Outside a watched pass (a retained graph, run after the recording) this does nothing.
        try:
            if step.backward_depth and owners[-1] != code:
                mark(code)
        except Exception as error:
            failed(RecordingPart.LAYERS, error)

    return Boundary(hook)
