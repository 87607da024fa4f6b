"""What runs when a layer is reached: at its call on the way forward, at its first node on the way back.

This is what a mark costs, so each hook has what it needs at hand in its closure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from laptime.recorder.autograd_graph import Boundary, graph_roots
from laptime.recorder.guard import Part, failed
from laptime.recorder.layer_division import Unit, has_parameters
from laptime.recorder.module_calls import Entering
from laptime.recorder.timeline import BACKWARD, INPUT, INSTRUMENT, RETURN, UNITS, backward_code, forward_code
from laptime.recorder.watched_networks import Network

if TYPE_CHECKING:
    from laptime.recorder.network_hooks import Instruments


def entering(instruments: Instruments, unit: Unit) -> Entering:
    """For a layer: from here on time is its own."""
    forward, backward = forward_code(unit.layer), backward_code(unit.layer)
    timeline, entries = instruments.timeline, instruments.entries
    mark, owners = timeline.mark, timeline.owners

    def enter(args: tuple[Any, ...]) -> None:
        if instruments.other_threads and instruments.foreign():
            return
        if instruments.backward_depth:
            mark(backward)  # a forward call during a backward pass recomputes: activation checkpointing
        elif owners[-1] == INPUT | RETURN:
            owners[-1] = forward  # what ran before the first layer is the first layer's: no second mark
        elif instruments.forward_depth or instruments.called_alone(unit):
            mark(forward)
        else:
            return
        entries.enter(backward, args[0].grad_fn if args and isinstance(args[0], torch.Tensor) else None)

    return enter


def entering_late(instruments: Instruments, unit: Unit) -> Entering:
    """For what may yet prove to be a layer: only some forward passes use it."""
    enter = entering(instruments, unit)

    def enter_late(args: tuple[Any, ...]) -> None:
        if instruments.other_threads and instruments.foreign():
            return
        alone = not instruments.forward_depth and not instruments.backward_depth
        if alone and not has_parameters(unit.module):
            return  # a metric, outside every forward pass
        if not unit.is_layer:
            unit.is_layer = unit.called = True
            division = instruments.networks[unit.network].division
            division.call(unit)
            division.resolve()
            instruments.version += 1
        enter(args)

    return enter_late


def discovering(instruments: Instruments, network: Network, unit: Unit) -> Entering:
    """For every module, while the layers are being found."""
    forward, backward = forward_code(unit.layer), backward_code(unit.layer)

    def discover(_: tuple[Any, ...]) -> None:
        if unit.entry or instruments.foreign():
            return  # its own hook does the rest
        if not instruments.forward_depth and not instruments.backward_depth:
            if not has_parameters(unit.module):
                return  # a metric or a criterion that lives in the module tree
            instruments.watch_entry(network, unit)
            instruments.root_enter(network, unit)
            return
        network.division.call(unit)
        instruments.reading_entered(unit)
        instruments.timeline.mark(backward if instruments.backward_depth else forward)
        instruments.entries.enter(backward)

    return discover


def mark_nodes(instruments: Instruments, outputs: Any) -> int:
    """Put a prehook on the first node of each layer; returns the owner of the very first."""
    entries = instruments.entries
    roots = graph_roots(outputs)
    searching = any(network.discovery for network in instruments.networks)
    found = None if searching else entries.known(roots)
    if found is None:
        instruments.timeline.mark(INSTRUMENT)
        began = time.perf_counter()
        found = entries.boundaries(roots, _no_layer(instruments.units) if searching else None)
        instruments.walked_s += time.perf_counter() - began
    known = instruments.boundaries
    for code, node in found:
        boundary = known.get(code) or _boundary(instruments, code)
        boundary.put_on(node)
    return found[0][0] if found else BACKWARD


def _no_layer(units: Sequence[Unit]) -> Callable[[int], bool]:
    return lambda code: code >= UNITS and not units[(code - UNITS) // 2].is_layer


def _boundary(instruments: Instruments, code: int) -> Boundary:
    owners, mark = instruments.timeline.owners, instruments.timeline.mark

    def hook(_: Any) -> None:
        # Outside a watched pass (a retained graph, run after the recording) this does nothing.
        try:
            if instruments.backward_depth and owners[-1] != code:
                mark(code)
        except Exception as error:
            failed(Part.LAYERS, error)

    instruments.boundaries[code] = Boundary(hook)
    return instruments.boundaries[code]
