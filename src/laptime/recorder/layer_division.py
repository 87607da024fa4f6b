"""The division of a network into layers, at four granularities.

Which modules are called cannot be known without calling them, so a division starts with *candidates* and is
resolved after the first forward pass: a candidate that was never called (an attention projection used
functionally) hands its parameters to its nearest called ancestor, which becomes a layer in its place.
"""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from laptime.errors import UnknownGranularity
from laptime.model import Layer

Granularity = str | int | Mapping[str, str | Sequence[str]]

GONE = nn.Module()


@dataclass(slots=True, eq=False)
class LayerUnit:
    """A module that may prove to be a layer."""

    index: int
    name: str
    path: str
    reference: weakref.ref[nn.Module]
    network: int
    candidate: bool
    compiled: bool
    shared: bool = False  # part of an earlier network too, and charged there
    entry: bool = False  # its calls are forward passes: the root, or a part that is called by itself
    parent: LayerUnit | None = None
    called: bool = False
    is_layer: bool = False
    owner: LayerUnit | None = None  # the layer that is charged with this unit's time and parameters
    leader: LayerUnit | None = None  # the first of a group that a mapping puts under one name

    @property
    def module(self) -> nn.Module:
        """The module; an empty one once the script has let go of it: no recording keeps a network alive."""
        module = self.reference()
        return GONE if module is None else module

    @property
    def ancestors(self) -> Iterator[LayerUnit]:
        """The units that this one is inside of, the nearest first."""
        unit = self.parent
        while unit is not None:
            yield unit
            unit = unit.parent

    @property
    def layer(self) -> int:
        """The index under which this unit's time and parameters are kept when it is a layer."""
        return self.index if self.leader is None else self.leader.index


def is_compiled(module: nn.Module) -> bool:
    """Whether calling this module enters a region that torch.compile owns: hooks inside it never fire."""
    in_place = vars(module).get("_compiled_call_impl")  # where `module.compile()` leaves the compiled call
    return hasattr(module, "_torchdynamo_orig_callable") or in_place is not None


def walk(root: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """(path, module, parent's path) of every module, each once, not entering compiled regions."""
    seen: set[int] = set()
    stack: list[tuple[str, nn.Module, str | None]] = [("", root, None)]
    while stack:
        here, current, parent = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield here, current, parent
        if not is_compiled(current):
            hidden = getattr(current, "parametrizations", None) if is_parametrized(current) else None
            children = [
                (f"{here}.{name}" if here else name, child, here)
                for name, child in current.named_children()
                if child is not hidden  # what computes a weight is part of the layer that has the weight
            ]
            stack.extend(reversed(children))


def own_parameters(module: nn.Module, *, recurse: bool = False) -> Iterator[nn.Parameter]:
    """A module's own parameters, those that its weights are computed from among them."""
    yield from module.parameters(recurse=recurse)
    if not recurse and is_parametrized(module):
        yield from module.parametrizations.parameters()  # type: ignore[union-attr]


def _is_lazy(parameter: torch.Tensor) -> bool:
    """Whether its shape is known only after the first call: torch raises when it is read before."""
    return isinstance(parameter, nn.parameter.UninitializedParameter)


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None or (
        is_parametrized(module) and len(list(module.children())) == 1
    )


def _has_matrix(module: nn.Module) -> bool:
    return any(_is_lazy(parameter) or parameter.dim() >= 2 for parameter in own_parameters(module))


def _computes(module: nn.Module) -> bool:
    own = _is_leaf(module) or any(True for _ in own_parameters(module))
    return own and not isinstance(module, _Loss)


def has_parameters(module: nn.Module) -> bool:
    """Whether a module is more than a metric or a criterion that lives in the module tree."""
    return next(module.parameters(), None) is not None


class Division:
    """One network's units, in the order of the module tree; layers once resolved."""

    def __init__(
        self, root: nn.Module, *, granularity: Granularity, network: int, prefix: str, first: int
    ) -> None:
        self._described: dict[int, Layer] = {}
        self.units: list[LayerUnit] = []
        self.calls: dict[int, LayerUnit] = {}  # by index, in the order of their first calls
        self._resolved_calls = -1  # units that had been called when the layers were decided; -1: not yet
        by_path: dict[str | None, LayerUnit] = {}
        leaders: dict[str, LayerUnit] = {}
        named = candidates(root, granularity)
        for path, module, parent in walk(root):
            compiled = is_compiled(module)
            name = named.get(path) or path or f"({type(_original(module)).__name__})"
            unit = LayerUnit(
                index=first + len(self.units),
                name=prefix + name,
                path=path,
                reference=weakref.ref(module),
                network=network,
                candidate=path in named or compiled,
                compiled=compiled,
                parent=by_path.get(parent),
            )
            group = named.get(path)
            if group is not None and leaders.setdefault(group, unit) is not unit:
                unit.leader = leaders[group]
            by_path[path] = unit
            self.units.append(unit)

    @property
    def resolved(self) -> bool:
        """Whether the layers have been decided."""
        return self._resolved_calls >= 0

    @property
    def root(self) -> nn.Module:
        """The network; an empty module once it is gone."""
        return self.units[0].module

    def call(self, unit: LayerUnit) -> None:
        """A unit was called; only its first call counts."""
        unit.called = True
        self.calls.setdefault(unit.index, unit)

    def resolve(self) -> None:
        """Decide the layers from the calls so far, and which layer owns each other unit. May be repeated."""
        if len(self.calls) == self._resolved_calls:
            return
        for unit in self.units:
            unit.is_layer = unit.candidate and unit.called
        for unit in self.units:
            if unit.candidate and not unit.called and not unit.shared and has_parameters(unit.module):
                for ancestor in unit.ancestors:
                    if ancestor.called:
                        ancestor.is_layer = True
                        break
        for unit in self.units:
            if unit.is_layer and unit.leader is not None:
                unit.leader.is_layer = True
        if not any(unit.is_layer for unit in self.units):
            self.units[0].is_layer = True  # a network without weights is one layer: itself
        self._assign_owners()
        self._resolved_calls = len(self.calls)

    def _assign_owners(self) -> None:
        """A layer owns what runs until the next layer starts."""
        current: LayerUnit | None = None
        first: LayerUnit | None = next((unit for unit in self.calls.values() if unit.is_layer), None)
        owners: dict[int, LayerUnit | None] = {}
        for unit in self.calls.values():
            current = unit if unit.is_layer else current
            owners[unit.index] = current or first
        previous = first
        for unit in self.units:
            unit.owner = owners.get(unit.index) or _called_ancestor_owner(unit, owners) or previous
            previous = unit.owner

    def layers(self) -> list[LayerUnit]:
        """The layers, in the order in which they were first called."""
        order = {unit.layer: rank for rank, unit in reversed(list(enumerate(self.calls.values())))}
        layers = [unit for unit in self.units if unit.is_layer and unit.leader is None]
        return sorted(layers, key=lambda unit: order.get(unit.index, len(order)))

    def parameters_by_layer(self, claimed: set[int]) -> dict[int, list[torch.Tensor]]:
        """Parameters of each layer by unit index; a tied parameter belongs to its first user.

        `claimed` holds the ids of those that have an owner, in this network or in one before it.
        """
        order = {index: rank for rank, index in enumerate(self.calls)}
        first_user = sorted(self.units, key=lambda unit: order.get(unit.index, len(self.calls) + unit.index))
        result: dict[int, list[torch.Tensor]] = {}
        for unit in first_user:
            owner = unit.owner.layer if unit.owner is not None else -1
            for parameter in own_parameters(unit.module, recurse=unit.compiled):
                if id(parameter) not in claimed and not _is_lazy(parameter):
                    claimed.add(id(parameter))
                    result.setdefault(owner, []).append(parameter)
        return result

    def describe(self, claimed: set[int]) -> dict[int, Layer]:
        """The layers as plain values, by unit index."""
        if self.root is not GONE:
            owned = self.parameters_by_layer(claimed)
            self._described = {}
            for unit in self.layers():
                kind = type_before_parametrizations(_original(unit.module)).__name__
                parameters = owned.get(unit.index, [])
                self._described[unit.index] = Layer(
                    name=unit.name,
                    path=unit.path,
                    kind=f"compiled {kind}" if unit.compiled else kind,
                    parameters=sum(p.numel() for p in parameters),
                    parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
                    trainable=any(p.requires_grad for p in parameters) or not parameters,
                    compiled=unit.compiled,
                )
        return self._described


def _called_ancestor_owner(unit: LayerUnit, owners: Mapping[int, LayerUnit | None]) -> LayerUnit | None:
    for ancestor in unit.ancestors:
        if ancestor.is_layer:
            return ancestor
        if ancestor.index in owners and ancestor.parent is not None:
            return owners[ancestor.index]
    return None


def _original(module: nn.Module) -> nn.Module:
    original = getattr(module, "_orig_mod", module)
    return original if isinstance(original, nn.Module) else module


def candidates(root: nn.Module, granularity: Granularity) -> dict[str, str | None]:
    """Paths that may become layers, each with a name of its own or None for its path."""
    if granularity == "layer":
        return dict.fromkeys(path for path, module, _ in walk(root) if _has_matrix(module))
    if granularity == "module":
        return dict.fromkeys(path for path, module, _ in walk(root) if _computes(module))
    if isinstance(granularity, bool):
        raise UnknownGranularity("layers= takes 'layer', 'module', a depth or a mapping, not a bool")
    if isinstance(granularity, int):
        return _at_depth(root, granularity)
    if isinstance(granularity, Mapping):
        return _as_mapped(root, granularity)
    raise UnknownGranularity(
        f"layers={granularity!r} is not known; use 'layer', 'module', a depth such as 2, "
        "or a mapping {layer name: module path or paths}"
    )


def _at_depth(root: nn.Module, depth: int) -> dict[str, str | None]:
    if depth < 0:
        raise UnknownGranularity(f"layers={depth}: a depth counts from 0 (the whole network)")
    paths: dict[str, str | None] = {}
    lists = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    uncallable = {path for path, module, _ in walk(root) if isinstance(module, lists)}
    for path, module, parent in walk(root):
        level = path.count(".") + 1 if path else 0
        # Lists cannot be called: their items stand in for them, one level further down.
        stands_in = parent in uncallable and level == depth + 1
        if isinstance(module, _Loss):
            continue  # its time is charged to the loss
        if path not in uncallable and (level == depth or stands_in or (level < depth and _is_leaf(module))):
            paths[path] = None
    return paths


def _as_mapped(root: nn.Module, mapping: Mapping[str, str | Sequence[str]]) -> dict[str, str | None]:
    paths = {path: module for path, module, _ in walk(root)}
    layer_names: dict[str, str | None] = {}
    if not mapping or not all(mapping.values()):
        raise UnknownGranularity("layers={…} needs a module path, or a list of them, for every layer name")
    for name, targets in mapping.items():
        for target in [targets] if isinstance(targets, str) else targets:
            if target not in paths:
                near = difflib.get_close_matches(target, paths, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "print(network) shows the paths"
                raise UnknownGranularity(f"layers[{name!r}]: the network has no module {target!r}; {hint}")
            layer_names[target] = name
    return layer_names


# -- the networks of a recording ---------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class WatchedNetwork:
    """A network under observation."""

    name: str
    division: Division
    undo: list[Callable[[], None]] = field(default_factory=list)
    discovery: list[Callable[[], None]] = field(default_factory=list)  # while its layers are being found
    forwards: int = 0
    trained: bool = False  # a discovering pass was in training mode
    searches: int = 0

    @property
    def root(self) -> nn.Module:
        return self.division.root
