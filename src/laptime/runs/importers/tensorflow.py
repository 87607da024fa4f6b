"""Layers from TensorFlow's Chrome timelines: an operation belongs to the variable scope in its name.

`conv1/Conv2D` is forward, `gradients/conv1/Conv2D_grad/…` backward, `Momentum/update_conv1/…` update.
One timeline is one step; one device is one rank. Operations that ran side by side share the time they have in
common, so that a step's accounts add up; the kernels table keeps each one's own length. A GPU's step includes
what the CPU computes while the GPU is idle, mostly before its first kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from laptime.errors import DataError
from laptime.files.text import one_line
from laptime.model import Account, Phase
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.runs.importers.imported import Collected, Share
from laptime.runs.importers.source import ChromeTrace, integer, mapping, name_of, span, thread_id
from laptime.runs.importers.trace_events import Event, Owner

_DEVICE = re.compile(r"(?:device:|/(?=[cg]pu:))(\w+):(\d+)(/stream:\w+|/memcpy)?.*\bCompute$")
_WAITS = re.compile(r"^_(Host)?(Recv|Send)$")  # of a CPU: for a device, so that it computes nothing
_ALL = "/stream:all"
_WRAPPERS = re.compile(r"^(ConstantFolding|PartitionedCall|StatefulPartitionedCall|tower_\d+|replica_\d+)/")
_TAPE = re.compile(r"^(gradients|gradient_tape)(_\d+)?/")
_UPDATE = re.compile(r"(?:^|/)update_([^/]+)")
_SLOT = re.compile(r"/(Momentum|Adam|Adagrad|Adadelta|RMSProp|Ftrl)(_\d+)?$")
_LOSS = re.compile(r"loss|cross_?entropy|xentropy", re.IGNORECASE)
_INPUT = re.compile(r"IteratorGetNext|Dequeue|ReaderRead|DecodeJpeg|_Arg|_Recv|_HostRecv")
_COPIES = re.compile(r"MEMCPY|Memcpy|_Send|_HostSend")


@dataclass(frozen=True, slots=True)
class TraceDevice:
    """What a device ran in one timeline, what its host computed, and when the first and last of all was."""

    name: str
    ran: list[Event]
    host: list[Event]
    begin: float
    end: float


def is_timeline(text: str) -> bool:
    """Whether the beginning of a Chrome trace is of TensorFlow's kind: its processes are devices."""
    return re.search(r'"name":\s*"[^"]*(device:\w+|/[cg]pu):\d+[^"]*(Compute|Tensors)"', text) is not None


def read(files: Iterable[Path]) -> Collected:
    """A step per file and device."""
    collected = Collected(source="tensorflow")
    steps = [_devices(file) for file in files]
    scopes = Scopes(
        [operation for devices in steps for device in devices for operation in device.ran],
        [operation for devices in steps for device in devices for operation in device.host],
    )
    for number, devices in enumerate(steps):
        for rank, device in enumerate(devices):
            _step(collected, scopes, number, rank, device)
    collected.device = {"type": "cuda" if collected.steps[0].device.startswith("gpu") else "cpu"}
    for layer in scopes.layers:
        collected.know(layer, "scope")
    collected.note("layers are the variable scopes of the graph, timed by TensorFlow's own tracer")
    return collected


def _devices(file: Path) -> list[TraceDevice]:
    """The GPUs of a timeline, or where there is none its CPUs."""
    rows = _rows(file)
    if not rows:
        raise DataError(
            f"{one_line(file)} holds no operations; run with trace_level=FULL_TRACE and save anew"
        )
    gpus = {name: by_row for name, by_row in rows.items() if name.startswith("gpu")}
    streams = {name: by_row for name, by_row in gpus.items() if any("/stream" in row for row in by_row)}
    host = [each for name, by_row in rows.items() if name.startswith("cpu") for each in by_row.get("", [])]
    computing = [operation for operation in host if not _WAITS.match(operation.kind)]
    devices = []
    for name, by_row in sorted((streams or gpus or rows).items()):
        computed = computing if name in gpus else []
        every = [operation for operations in by_row.values() for operation in operations] + computed
        begin, end = min(operation.start for operation in every), max(operation.end for operation in every)
        devices.append(TraceDevice(name, _ran(by_row), computed, begin, end))
    return devices


def _rows(file: Path) -> dict[str, dict[str, list[Event]]]:
    """Operations by device and by its rows: its streams, its copies, and what the host did for it ("")."""
    names: dict[int | str, str] = {}
    waiting = []
    for event in ChromeTrace(file).events():
        if event.get("ph") == "M" and event.get("name") == "process_name":
            names[thread_id(event.get("pid"))] = name_of(mapping(event.get("args")).get("name"))
        elif event.get("ph") == "X" and event.get("cat") == "Op":
            waiting.append(event)
    rows: dict[str, dict[str, list[Event]]] = {}
    for event in waiting:
        device = _DEVICE.search(names.get(thread_id(event.get("pid")), ""))
        times = span(event)
        if device is not None and times is not None:
            args = mapping(event.get("args"))
            name = name_of(args.get("name") or event.get("name")).partition(":")[0]
            kind = name_of(args.get("op") or event.get("name"))
            by_row = rows.setdefault(f"{device[1].lower()}:{device[2]}", {})
            operation = Event(name, 0, *times, stream=integer(event.get("tid"), 0), kind=kind)
            by_row.setdefault(device[3] or "", []).append(operation)
    return rows


def _ran(rows: Mapping[str, list[Event]]) -> list[Event]:
    """What the device ran, each once: `stream:all` repeats the other streams, and those the copies."""
    order = sorted((row for row in rows if row), key=lambda row: (row != _ALL, row == "/memcpy", row))
    if not any("/stream" in row for row in order):
        return rows.get("", []) or [operation for row in order for operation in rows[row]]
    ran: list[Event] = []
    for row in order:
        known = {(operation.start, operation.end) for operation in ran}
        ran += [operation for operation in rows[row] if (operation.start, operation.end) not in known]
    return ran


class Scopes:
    """The layers of a graph: its outermost scopes, less one that all of them are in (`alexnet/conv1/…`)."""

    def __init__(self, operations: Iterable[Event], host: Iterable[Event]) -> None:
        first: dict[str, Event] = {}
        for operation in operations:
            first.setdefault(operation.name, operation)
        kinds = {operation.name: operation.kind for operation in (*host, *first.values())}
        # `Momentum` of `Momentum/update_conv1`: the optimizer's own constants are no layer
        self._optimizers = {name.split("/update_")[0] for name in kinds if "/update_" in name}
        # The scope that all others are in.
        paths = [path for name in first if len(path := _path(name)[0]) > 1]
        firsts = {path[0] for path in paths if not _LOSS.search(path[0])}
        deep = {path[1] for path in paths if path[0] in firsts and len(path) > 2}
        self._around = next(iter(firsts)) if len(firsts) == 1 and len(deep) > 1 else None
        self._owners = {name: self._find_owner(name, kind) for name, kind in kinds.items()}
        main: dict[str, Event] = {}
        for operation in sorted(first.values(), key=lambda operation: -operation.length):
            owner = self.owner(operation)
            if owner.account is Account.FORWARD and owner.layer and owner.layer != OTHER_LAYER:
                main.setdefault(owner.layer, operation)
        # By when their main operation ran: variables are read in any order.
        self.layers = sorted(main, key=lambda layer: main[layer].start)

    def owner(self, operation: Event) -> Owner:
        """What the operation is charged to."""
        return self._owners[operation.name]

    def _find_owner(self, name: str, kind: str) -> Owner:
        path, phase = _path(name)
        if name.split("/")[0] in self._optimizers and phase is Phase.FORWARD:
            return Owner(Account.UPDATE, OTHER_LAYER)
        if _COPIES.search(kind) or _COPIES.search(name):
            return Owner(Account.COPY)
        if _INPUT.search(kind) and len(path) == 1:
            return Owner(Account.DATA_WAIT)
        scopes = path[1:] if path[0] == self._around else path
        layer = scopes[0] if len(scopes) > 1 else OTHER_LAYER
        account = Account(phase.value)
        if _LOSS.search(layer) or (layer == OTHER_LAYER and _LOSS.search(name)):
            return Owner(Account.LOSS if phase is Phase.FORWARD else account, LOSS_LAYER)
        return Owner(account, layer)


def _path(name: str) -> tuple[list[str], Phase]:
    """The scopes that an operation lies in, and its phase."""
    name = _unwrapped(name)
    if update := _UPDATE.search(name):
        return [*(name[update.start(1) :].split("/")), ""], Phase.UPDATE
    if _TAPE.search(name) or "_grad/" in name:
        return _unwrapped(_TAPE.sub("", name)).split("/"), Phase.BACKWARD
    return name.split("/"), Phase.UPDATE if _SLOT.search(name) else Phase.FORWARD


def _unwrapped(name: str) -> str:
    while (shorter := _WRAPPERS.sub("", name)) != name:
        name = shorter
    return name


def _step(collected: Collected, scopes: Scopes, number: int, rank: int, device: TraceDevice) -> None:
    shares, idle, together = _shares(device, scopes)
    if together > 1.05:
        collected.note(f"{together:.1f} operations ran at a time: layers share the time they have in common")
    calls: Counter[Owner] = Counter()
    for each in sorted([*device.ran, *device.host], key=lambda operation: operation.start):
        owner = scopes.owner(each)
        calls[owner] += 1
        if owner in shares and calls[owner] == 1:
            shares[owner].begin = each.start
    for each in [*device.ran, *(device.host if rank == 0 else ())]:  # the host is of all ranks
        collected.add_kernel(number, rank, scopes.owner(each), each, "operator")
    shares[Owner(Account.IDLE)] = Share(begin=device.begin, idle=idle)
    collected.add_step(number, rank, device.name, (device.begin, device.end), shares, calls)


def _shares(device: TraceDevice, scopes: Scopes) -> tuple[dict[Owner, Share], float, float]:
    """Time by owner, the time in which nothing ran, and how many of the device's operations ran at a time.

    The host's operations have only the time in which the device runs nothing.
    """
    moments = sorted(
        [
            (moment, change, ours, scopes.owner(operation))
            for ours, operations in ((True, device.ran), (False, device.host))
            for operation in operations
            for moment, change in ((operation.start, 1), (operation.end, -1))
        ],
        key=lambda moment: moment[0],
    )
    shares = {owner: Share(begin=device.begin) for _, _, ours, owner in moments if ours}
    running: dict[bool, Counter[Owner]] = {True: Counter(), False: Counter()}
    busy, idle, before = 0.0, device.end - moments[-1][0], device.begin
    for moment, change, ours, owner in moments:
        now = running[True] or running[False]
        for sharer, many in now.items():
            share = shares.setdefault(sharer, Share(begin=device.begin))
            share.busy += (moment - before) * many / now.total()
        busy += moment - before if running[True] else 0.0
        idle += 0.0 if now else moment - before
        running[ours][owner] += change
        if not running[ours][owner]:
            del running[ours][owner]
        before = moment
    return shares, idle, sum(operation.length for operation in device.ran) / (busy or 1.0)
