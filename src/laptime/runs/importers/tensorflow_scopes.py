"""Which layer and phase an operation of a TensorFlow graph is of, by the scopes in its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from laptime.model import Account, Phase
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER

_WRAPPERS = re.compile(r"^(ConstantFolding|PartitionedCall|StatefulPartitionedCall|tower_\d+|replica_\d+)/")
_GRADIENTS = re.compile(r"^(gradients|gradient_tape)(_\d+)?/|_grad/")
_UPDATE = re.compile(r"(?:^|/)update_([^/]+)")
_SLOT = re.compile(r"/(Momentum|Adam|Adagrad|Adadelta|RMSProp|Ftrl)(_\d+)?$")
_LOSS = re.compile(r"loss|cross_?entropy|xentropy", re.IGNORECASE)
_INPUT = re.compile(r"IteratorGetNext|Dequeue|ReaderRead|DecodeJpeg|_Arg|_Recv|_HostRecv")
_COPIES = re.compile(r"MEMCPY|Memcpy|_Send|_HostSend")
_ACCOUNTS = {Phase.FORWARD: Account.FORWARD, Phase.BACKWARD: Account.BACKWARD, Phase.UPDATE: Account.UPDATE}


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """One operation of the graph, in microseconds."""

    name: str
    kind: str
    lane: int
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ScopeOwner:
    """What an operation is charged to; only the phases have a layer."""

    account: Account
    layer: str = OTHER_LAYER
    phase: Phase | None = None


class Scopes:
    """The layers of a graph: its outermost scopes, less one that all of them are in (`alexnet/conv1/…`)."""

    def __init__(self, operations: Iterable[TracedOperation], host: Iterable[TracedOperation] = ()) -> None:
        first: dict[str, TracedOperation] = {}
        for operation in operations:
            first.setdefault(operation.name, operation)
        names = {operation.name: operation.kind for operation in host} | {
            name: operation.kind for name, operation in first.items()
        }
        # `Momentum` of `Momentum/update_conv1`: the optimizer's own constants are no layer
        self._optimizers = {name.split("/update_")[0] for name in names if "/update_" in name}
        self._around = self._around_all(first)
        self._owners = {name: self._own(name, kind) for name, kind in names.items()}
        self.layers = self._in_order(first)

    def _around_all(self, names: Iterable[str]) -> str | None:
        """The scope that all others are in."""
        paths = [path for name in names if len(path := self._path(name)[0]) > 1]
        firsts = {path[0] for path in paths if not _LOSS.search(path[0])}
        deep = {path[1] for path in paths if path[0] in firsts and len(path) > 2}
        return next(iter(firsts)) if len(firsts) == 1 and len(deep) > 1 else None

    def _in_order(self, first: Mapping[str, TracedOperation]) -> list[str]:
        """Layers by when their main operation ran: variables are read in any order."""
        main: dict[str, TracedOperation] = {}
        for name, operation in first.items():
            owner = self._owners[name]
            if owner.phase is not Phase.FORWARD or owner.layer in (LOSS_LAYER, OTHER_LAYER):
                continue
            if owner.layer not in main or operation.length > main[owner.layer].length:
                main[owner.layer] = operation
        return sorted(main, key=lambda layer: main[layer].start)

    def owner(self, operation: TracedOperation) -> ScopeOwner:
        """What the operation is charged to."""
        return self._owners[operation.name]

    def _path(self, name: str) -> tuple[list[str], Phase]:
        """The scopes that an operation lies in, and its phase."""
        phase = Phase.FORWARD
        while (shorter := _WRAPPERS.sub("", name)) != name:
            name = shorter
        if update := _UPDATE.search(name):
            return [*(name[update.start(1) :].split("/")), ""], Phase.UPDATE
        if _GRADIENTS.search(name):
            phase, name = Phase.BACKWARD, re.sub(r"^(gradients|gradient_tape)(_\d+)?/", "", name)
            while (shorter := _WRAPPERS.sub("", name)) != name:
                name = shorter
        elif _SLOT.search(name):
            phase = Phase.UPDATE
        return name.split("/"), phase

    def _own(self, name: str, kind: str) -> ScopeOwner:
        path, phase = self._path(name)
        if name.split("/")[0] in self._optimizers and phase is Phase.FORWARD:
            return ScopeOwner(Account.UPDATE, OTHER_LAYER, Phase.UPDATE)
        if _COPIES.search(kind) or _COPIES.search(name):
            return ScopeOwner(Account.COPY)
        if _INPUT.search(kind) and len(path) == 1:
            return ScopeOwner(Account.DATA_WAIT)
        scopes = path[1:] if path[0] == self._around else path
        layer = scopes[0] if len(scopes) > 1 else OTHER_LAYER
        if _LOSS.search(layer) or (layer == OTHER_LAYER and _LOSS.search(name)):
            return ScopeOwner(Account.LOSS if phase is Phase.FORWARD else _ACCOUNTS[phase], LOSS_LAYER, phase)
        return ScopeOwner(_ACCOUNTS[phase], layer, phase)
