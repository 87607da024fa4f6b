"""Layers from TensorFlow's Chrome timelines: an operation belongs to the variable scope in its name.

`conv1/Conv2D` is forward, `gradients/conv1/Conv2D_grad/…` backward, `Momentum/update_conv1/…` update.
One timeline is one step; one device is one rank. Operations that ran side by side share the time they have in
common, so that a step's accounts add up; the kernels table keeps each one's own length. A GPU's step includes
what the CPU computes while the GPU is idle, mostly before its first kernel.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laptime.errors import DataError
from laptime.files.text import one_line
from laptime.model import Account, LayerTime, Step
from laptime.runs.importers.imported import Collected
from laptime.runs.importers.json_values import finite, integer, mapping, thread_id
from laptime.runs.importers.json_values import name as name_of
from laptime.runs.importers.source import ChromeTrace
from laptime.runs.importers.tensorflow_scopes import ScopeOwner, Scopes, TracedOperation

_S = 1e-6
_DEVICE = re.compile(r"(?:device:|/(?=[cg]pu:))(\w+):(\d+)(/stream:\w+|/memcpy)?.*\bCompute$")
_WAITS = re.compile(r"^_(Host)?(Recv|Send)$")  # of a CPU: for a device, so that it computes nothing
_ALL = "/stream:all"


@dataclass(frozen=True, slots=True)
class TraceDevice:
    """What a device ran in one timeline, what its host computed, and when the first and last of all was."""

    name: str
    ran: list[TracedOperation]
    host: list[TracedOperation]
    begin: float
    end: float


def is_timeline(text: str) -> bool:
    """Whether the beginning of a Chrome trace is of TensorFlow's kind: its processes are devices."""
    return re.search(r'"name":\s*"[^"]*(device:\w+|/[cg]pu):\d+[^"]*(Compute|Tensors)"', text) is not None


def read(files: Iterable[Path]) -> Collected:
    """A step per file and device."""
    collected = Collected(source="tensorflow")
    steps = [(number, _devices(file)) for number, file in enumerate(files)]
    of_steps = [device for _, devices in steps for device in devices]
    scopes = Scopes(
        [operation for device in of_steps for operation in device.ran],
        [operation for device in of_steps for operation in device.host],
    )
    for number, devices in steps:
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
    host = [
        operation
        for name, by_row in rows.items()
        if name.startswith("cpu")
        for operation in by_row.get("", [])
    ]
    devices = []
    for name, by_row in sorted((streams or gpus or rows).items()):
        computed = (
            [operation for operation in host if not _WAITS.match(operation.kind)] if name in gpus else []
        )
        every = [operation for operations in by_row.values() for operation in operations] + computed
        begin, end = min(operation.start for operation in every), max(operation.end for operation in every)
        devices.append(TraceDevice(name, _ran(by_row), computed, begin, end))
    return devices


def _rows(file: Path) -> dict[str, dict[str, list[TracedOperation]]]:
    """Operations by device and by its rows: its streams, its copies, and what the host did for it ("")."""
    names: dict[int | str, str] = {}
    waiting = []
    for event in ChromeTrace(file).events():
        if event.get("ph") == "M" and event.get("name") == "process_name":
            names[thread_id(event.get("pid"))] = name_of(mapping(event.get("args")).get("name"))
        elif event.get("ph") == "X" and event.get("cat") == "Op":
            waiting.append(event)
    rows: dict[str, dict[str, list[TracedOperation]]] = {}
    for event in waiting:
        device = _DEVICE.search(names.get(thread_id(event.get("pid")), ""))
        operation = _operation(event)
        if device is not None and operation is not None:
            by_row = rows.setdefault(f"{device[1].lower()}:{device[2]}", {})
            by_row.setdefault(device[3] or "", []).append(operation)
    return rows


def _ran(rows: Mapping[str, list[TracedOperation]]) -> list[TracedOperation]:
    """What the device ran, each once: `stream:all` repeats the other streams, and those the copies."""
    order = sorted((row for row in rows if row), key=lambda row: (row != _ALL, row == "/memcpy", row))
    if not any("/stream" in row for row in order):
        return rows.get("", []) or [operation for row in order for operation in rows[row]]
    ran: list[TracedOperation] = []
    for row in order:
        known = {(operation.start, operation.end) for operation in ran}
        ran += [operation for operation in rows[row] if (operation.start, operation.end) not in known]
    return ran


def _operation(event: dict[str, Any]) -> TracedOperation | None:
    start, duration = finite(event.get("ts", 0)), finite(event.get("dur", 0))
    if start is None or duration is None:
        return None
    args = mapping(event.get("args"))
    name = name_of(args.get("name") or event.get("name")).partition(":")[0]
    kind = name_of(args.get("op") or event.get("name"))
    return TracedOperation(name, kind, integer(event.get("tid"), 0), start, start + max(0.0, duration))


def _step(found: Collected, scopes: Scopes, number: int, rank: int, device: TraceDevice) -> None:
    shares, idle, together = _shares(device, scopes)
    if together > 1.05:
        found.note(f"{together:.1f} operations ran at a time: layers share the time they have in common")
    accounts: dict[Account, float] = defaultdict(float)
    first: dict[ScopeOwner, float] = {}
    calls: dict[ScopeOwner, int] = defaultdict(int)
    for operation in sorted([*device.ran, *device.host], key=lambda operation: operation.start):
        owner = scopes.owner(operation)
        first.setdefault(owner, operation.start)
        calls[owner] += 1
    for operation in [*device.ran, *(device.host if rank == 0 else ())]:  # the host is of all ranks
        _kernel(found, number, rank, scopes.owner(operation), operation)
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
    accounts[Account.IDLE] = idle * _S
    found.steps.append(
        Step.closed(
            step=number,
            optimizer_step=number,
            rank=rank,
            device=device.name,
            start_s=device.begin * _S,
            wall_s=(device.end - device.begin) * _S,
            seconds=accounts,
            instrumented=True,
        )
    )


def _kernel(found: Collected, number: int, rank: int, owner: ScopeOwner, one: TracedOperation) -> None:
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


def _shares(device: TraceDevice, scopes: Scopes) -> tuple[dict[ScopeOwner, float], float, float]:
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
    shares: dict[ScopeOwner, float] = {owner: 0.0 for _, _, ours, owner in moments if ours}
    running: dict[bool, Counter[ScopeOwner]] = {True: Counter(), False: Counter()}
    busy, idle, before = 0.0, device.end - moments[-1][0], device.begin
    for moment, change, ours, owner in moments:
        now = running[True] or running[False]
        for sharer, many in now.items():
            shares[sharer] = shares.get(sharer, 0.0) + (moment - before) * many / now.total()
        busy += moment - before if running[True] else 0.0
        idle += 0.0 if now else moment - before
        running[ours][owner] += change
        if not running[ours][owner]:
            del running[ours][owner]
        before = moment
    return shares, idle, sum(operation.length for operation in device.ran) / (busy or 1.0)
