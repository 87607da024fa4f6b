"""Layers from TensorFlow's Chrome timelines: an operation belongs to the variable scope in its name.

`conv1/Conv2D` is forward, `gradients/conv1/Conv2D_grad/…` backward, `Momentum/update_conv1/…` update, as the
thesis read them. One timeline is one step; one device is one rank. Operations that ran side by side share the
time they have in common, so that a step's books close; the kernels table keeps each one's own length.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laptime.errors import DataError
from laptime.record import Account, LayerTime, Phase, Step
from laptime.record.layers import LOSS_UNIT, OTHER_UNIT
from laptime.store.collect.collected import Collected
from laptime.store.collect.source import ChromeTrace
from laptime.store.files import one_line

_S = 1e-6
_WRAPPERS = re.compile(r"^(ConstantFolding|PartitionedCall|StatefulPartitionedCall|tower_\d+|replica_\d+)/")
_GRADIENTS = re.compile(r"^(gradients|gradient_tape)(_\d+)?/|_grad/")
_UPDATE = re.compile(r"(?:^|/)update_([^/]+)")
_SLOT = re.compile(r"/(Momentum|Adam|Adagrad|Adadelta|RMSProp|Ftrl)(_\d+)?$")
_LOSS = re.compile(r"loss|cross_?entropy|xentropy", re.IGNORECASE)
_INPUT = re.compile(r"IteratorGetNext|Dequeue|ReaderRead|DecodeJpeg|_Arg|_Recv|_HostRecv")
_COPIES = re.compile(r"MEMCPY|Memcpy|_Send|_HostSend")
_DEVICE = re.compile(r"device:(\w+):(\d+)(/stream:\w+)?.*\bCompute$")
_ACCOUNTS = {Phase.FORWARD: Account.FORWARD, Phase.BACKWARD: Account.BACKWARD, Phase.UPDATE: Account.UPDATE}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the graph, in microseconds."""

    name: str
    kind: str
    lane: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Owner:
    """What an operation is charged to; only the phases have a layer."""

    account: Account
    layer: str = OTHER_UNIT
    phase: Phase | None = None


def is_timeline(text: str) -> bool:
    """Whether the beginning of a Chrome trace is of TensorFlow's kind: its processes are devices."""
    return re.search(r'"name":\s*"[^"]*device:\w+:\d+[^"]*(Compute|Tensors)"', text) is not None


def read(files: Sequence[Path]) -> Collected:
    """A step per file and device."""
    found = Collected(source="tensorflow")
    steps = [(number, _devices(file)) for number, file in enumerate(files)]
    scopes = Scopes(one for _, devices in steps for one in every(devices))
    for number, devices in steps:
        for rank, (device, operations) in enumerate(devices.items()):
            _step(found, scopes, number, rank, device, operations)
    device = found.steps[0].device
    found.device = {"type": "cuda" if device.startswith("gpu") else "cpu"}
    for layer in scopes.layers:
        found.know(layer, "scope")
    found.note("layers are the variable scopes of the graph, timed by TensorFlow's own tracer")
    return found


def every(devices: dict[str, list[Operation]]) -> list[Operation]:
    """The operations of all devices."""
    return [one for operations in devices.values() for one in operations]


def _devices(file: Path) -> dict[str, list[Operation]]:
    """Operations by device. A GPU's stream is what it computed; the host's part of that is left out."""
    names: dict[Any, str] = {}
    lanes: dict[str, list[Operation]] = defaultdict(list)
    waiting = []
    for event in ChromeTrace(file).events():
        if event.get("ph") == "M" and event.get("name") == "process_name":
            names[event.get("pid")] = str((event.get("args") or {}).get("name", ""))
        elif event.get("ph") == "X" and event.get("cat") == "Op":
            waiting.append(event)
    for event in waiting:
        device = _DEVICE.search(names.get(event.get("pid"), ""))
        if device is not None:
            place = f"{device[1].lower()}:{device[2]}{'/stream' if device[3] else ''}"
            lanes[place].append(_operation(event))
    if not lanes:
        raise DataError(
            f"{one_line(file)} holds no operations; run with trace_level=FULL_TRACE and save anew"
        )
    streams = {name.removesuffix("/stream"): ops for name, ops in lanes.items() if name.endswith("/stream")}
    if not streams:
        gpus = {name: ops for name, ops in lanes.items() if name.startswith("gpu")}
        streams = gpus or dict(lanes)
    return dict(sorted(streams.items()))


def _operation(event: dict[str, Any]) -> Operation:
    args = event.get("args") or {}
    start, duration = float(event.get("ts", 0)), float(event.get("dur", 0))
    name = str(args.get("name") or event.get("name", "")).partition(":")[0]
    kind = str(args.get("op") or event.get("name", ""))
    return Operation(name, kind, int(event.get("tid", 0)), start, start + duration)


def _length(one: Operation) -> float:
    return one.end - one.start


class Scopes:
    """The layers of a graph: its outermost scopes, less one that all of them are in (`alexnet/conv1/…`)."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        first: dict[str, Operation] = {}
        for one in operations:
            first.setdefault(one.name, one)
        names = {name: one.kind for name, one in first.items()}
        self._owners: dict[str, Owner] = {}
        # `Momentum` of `Momentum/update_conv1`: the optimizer's own constants are no layer
        self._optimizers = {name.split("/update_")[0] for name in names if "/update_" in name}
        paths = [self._path(name)[0] for name in names]
        scoped = [path for path in paths if len(path) > 1]
        firsts = {path[0] for path in scoped if not _LOSS.search(path[0])}
        deep = [path for path in scoped if path[0] in firsts]
        self._skip = 1 if len(firsts) == 1 and len({path[1] for path in deep if len(path) > 2}) > 1 else 0
        for name, kind in names.items():
            self._owners[name] = self._own(name, kind)
        self.layers = self._in_order(first)

    def _in_order(self, first: Mapping[str, Operation]) -> list[str]:
        """Layers by when their main operation ran: variables are read in any order."""
        main: dict[str, Operation] = {}
        for name, one in first.items():
            owner = self._owners[name]
            if owner.phase is not Phase.FORWARD or owner.layer in (LOSS_UNIT, OTHER_UNIT):
                continue
            if owner.layer not in main or _length(one) > _length(main[owner.layer]):
                main[owner.layer] = one
        return sorted(main, key=lambda layer: main[layer].start)

    def owner(self, operation: Operation) -> Owner:
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

    def _own(self, name: str, kind: str) -> Owner:
        path, phase = self._path(name)
        if name.split("/")[0] in self._optimizers and phase is Phase.FORWARD:
            return Owner(Account.UPDATE, OTHER_UNIT, Phase.UPDATE)
        if _COPIES.search(kind) or _COPIES.search(name):
            return Owner(Account.COPY)
        if _INPUT.search(kind) and len(path) == 1:
            return Owner(Account.DATA_WAIT)
        scopes = path[self._skip :]
        layer = scopes[0] if len(scopes) > 1 else OTHER_UNIT
        if _LOSS.search(layer) or (layer == OTHER_UNIT and _LOSS.search(name)):
            return Owner(Account.LOSS if phase is Phase.FORWARD else _ACCOUNTS[phase], LOSS_UNIT, phase)
        return Owner(_ACCOUNTS[phase], layer, phase)


def _step(
    found: Collected, scopes: Scopes, number: int, rank: int, device: str, operations: list[Operation]
) -> None:
    operations = sorted(operations, key=lambda one: one.start)
    begin, end = operations[0].start, max(one.end for one in operations)
    shares, together, gaps = _shares(operations, scopes)
    if together > 1.05:
        found.note(f"{together:.1f} operations ran at a time: layers share the time they have in common")
    accounts: dict[Account, float] = defaultdict(float)
    first: dict[Owner, float] = {}
    calls: dict[Owner, int] = defaultdict(int)
    for one in operations:
        owner = scopes.owner(one)
        first.setdefault(owner, one.start)
        calls[owner] += 1
        _kernel(found, number, rank, owner, one)
    for owner, length in shares.items():
        accounts[owner.account] += length * _S
        if owner.phase is not None:
            found.layers.append(
                LayerTime(
                    step=number,
                    rank=rank,
                    layer=owner.layer,
                    phase=owner.phase,
                    start_s=first[owner] * _S,
                    seconds=length * _S,
                    calls=calls[owner],
                    busy_s=length * _S,
                    idle_s=0.0,
                )
            )
    accounts[Account.IDLE] = gaps * _S
    found.steps.append(
        Step.closed(
            step=number,
            optimizer_step=number,
            rank=rank,
            device=device,
            start_s=begin * _S,
            wall_s=(end - begin) * _S,
            seconds=accounts,
            instrumented=True,
        )
    )


def _kernel(found: Collected, number: int, rank: int, owner: Owner, one: Operation) -> None:
    found.add_kernel(
        step=number,
        rank=rank,
        layer=owner.layer,
        phase=owner.account.value,
        kind="operator",
        name=one.name,
        stream=one.lane,
        start_s=one.start * _S,
        seconds=(one.end - one.start) * _S,
    )


def _shares(operations: Sequence[Operation], scopes: Scopes) -> tuple[dict[Owner, float], float, float]:
    """Time by owner, how many operations ran at a time, and the time in which none did."""
    moments = sorted(
        [(one.start, True, scopes.owner(one)) for one in operations]
        + [(one.end, False, scopes.owner(one)) for one in operations],
        key=lambda moment: moment[0],
    )
    shares: dict[Owner, float] = defaultdict(float)
    running: dict[Owner, int] = defaultdict(int)
    count, before, gaps = 0, moments[0][0], 0.0
    for moment, starts, owner in moments:
        if count:
            for one, many in running.items():
                if many:
                    shares[one] += (moment - before) * many / count
        else:
            gaps += moment - before
        running[owner] += 1 if starts else -1
        count += 1 if starts else -1
        before = moment
        shares[owner] += 0.0
    summed = sum(one.end - one.start for one in operations)
    return dict(shares), summed / (sum(shares.values()) or 1.0), gaps
