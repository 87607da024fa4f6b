"""Closing the books: the marks of finished steps become steps and layer rows.

This runs away from the training thread, on steps whose last stamp the device has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from laptime.measure.clocks import Clock
from laptime.measure.instruments import Instruments
from laptime.measure.kernels import StepTrace
from laptime.measure.timeline import (
    BACKWARD,
    CODE,
    FORWARD,
    HOST,
    LOSS,
    LOSS_BACKWARD,
    OPTIMIZERS,
    UNITS,
    RawStep,
    Settled,
    account_of,
    settle,
)
from laptime.record import ACCOUNTS, COMPUTE, Account, How, KernelTime, Phase, Step
from laptime.record.layers import LOSS_UNIT, OTHER_UNIT

# Owners of the layer table that are no module: (owner code, row name, phase).
PSEUDO = (
    (LOSS, LOSS_UNIT, Phase.FORWARD),
    (LOSS_BACKWARD, LOSS_UNIT, Phase.BACKWARD),
    (FORWARD, OTHER_UNIT, Phase.FORWARD),
    (BACKWARD, OTHER_UNIT, Phase.BACKWARD),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rows a step has: fixed as long as the same owners run, so worked out once."""

    codes: NDArray[np.int64]
    names: list[str]
    phases: list[str]
    hows: list[str]
    shares: NDArray[np.float64]  # of the owner's time; 1 unless allocated
    offsets: NDArray[np.float64]  # into the owner's time, as a share of it


@dataclass(frozen=True, slots=True)
class LayerBlock:
    """The layer rows of one step."""

    step: Step
    plan: Plan
    starts: NDArray[np.float64]
    seconds: NDArray[np.float64]
    calls: NDArray[np.int64]
    busy: NDArray[np.float64] | None
    memory: list[int | None] | None


class Books:
    """Closes steps one after the other; keeps only running sums."""

    def __init__(self, clock: Clock, instruments: Instruments) -> None:
        self._clock = clock
        self._instruments = instruments
        self.elapsed_s = 0.0  # end of the last closed step, since the start of the run
        self.problems: list[str] = []
        self._plan_key: tuple[bytes, int] | None = None
        self._plan: Plan

    def close(self, raw: RawStep) -> tuple[Step, LayerBlock | None]:
        """One step and its layer rows (None if the step was bare)."""
        times = self._clock.seconds(raw.stamps)
        self._clock.recycle(raw.stamps[:-1])  # the last stamp is the first of the next step
        settled = settle(times, raw.owners, self._instruments.is_layer())
        start_s = self.elapsed_s
        self.elapsed_s += settled.wall_s
        trace: StepTrace | None = raw.trace
        seconds = {account: float(settled.accounts[CODE[account]]) for account in ACCOUNTS}
        for account in (Account.IDLE, Account.UNEXPLAINED):
            del seconds[account]
        if trace is not None:
            _split_idle(seconds, settled, trace)
        step = Step.closed(
            start_s=start_s,
            wall_s=settled.wall_s,
            seconds=seconds,
            device=self._clock.device,
            instrumented=raw.instrumented,
            **self._logged(raw),
            **raw.fields,
        )
        return step, self._block(settled, step, trace) if raw.instrumented else None

    def _logged(self, raw: RawStep) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, (value, version) in raw.logged.items():
            if isinstance(value, torch.Tensor):
                if value._version != version:
                    self._note(
                        f"{name} was changed in place after it was logged; log a copy to have its value kept"
                    )
                    continue
                values[name] = _read(value)
            else:
                values[name] = float(value)
        return values

    def _note(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def kernels(self, raw: RawStep, step: Step) -> list[KernelTime]:
        """The kernels of a traced step, each with the layer that launched it."""
        units = self._instruments.units
        pseudo: dict[int, tuple[str, str]] = {code: (name, phase) for code, name, phase in PSEUDO}
        rows = []
        for kernel in raw.trace.kernels:
            if kernel.code >= UNITS:
                unit, backward = divmod(kernel.code - UNITS, 2)
                layer, phase = units[unit].name, (Phase.BACKWARD if backward else Phase.FORWARD)
            elif kernel.code >= OPTIMIZERS:
                layer, phase = OTHER_UNIT, Phase.UPDATE
            else:
                layer, phase = pseudo.get(kernel.code, (OTHER_UNIT, str(ACCOUNTS[min(kernel.code, HOST)])))
            rows.append(
                KernelTime(
                    stage=step.stage,
                    attempt=step.attempt,
                    step=step.step,
                    rank=step.rank,
                    layer=layer,
                    phase=phase,
                    kind=kernel.kind,
                    name=kernel.name,
                    stream=kernel.stream,
                    start_s=step.start_s + kernel.start_s,
                    seconds=kernel.seconds,
                )
            )
        return rows

    def _block(self, settled: Settled, step: Step, trace: StepTrace | None) -> LayerBlock:
        """The layer rows of one step as columns: hundreds of rows a step, so no object per row."""
        ran = (settled.calls > 0) | (settled.seconds > 0)
        key = (ran.tobytes(), self._instruments.version)
        if key != self._plan_key:
            self._plan_key, self._plan = key, self._make_plan(ran)
        plan = self._plan
        seconds = settled.seconds[plan.codes] * plan.shares
        starts = step.start_s + settled.starts[plan.codes] + settled.seconds[plan.codes] * plan.offsets
        busy = memory = None
        if trace is not None:
            spans = settled.seconds[plan.codes]
            known = np.array([trace.busy_s.get(code, 0.0) for code in plan.codes.tolist()])
            busy = np.minimum(spans, known) * plan.shares
            memory = [trace.peak_bytes.get(code) for code in plan.codes.tolist()]
        return LayerBlock(step, plan, starts, seconds, np.maximum(1, settled.calls[plan.codes]), busy, memory)

    def _make_plan(self, ran: NDArray[np.bool_]) -> Plan:
        units = self._instruments.units
        rows: list[tuple[int, str, Phase, How, float, float]] = []
        for code in (np.flatnonzero(ran[UNITS:]) + UNITS).tolist():
            phase = Phase.BACKWARD if (code - UNITS) % 2 else Phase.FORWARD
            rows.append((code, units[(code - UNITS) // 2].name, phase, How.MEASURED, 1.0, 0.0))
        rows += [(code, name, phase, How.MEASURED, 1.0, 0.0) for code, name, phase in PSEUDO if ran[code]]
        # No optimizer has a boundary per parameter: its time is split by parameter bytes, and says so.
        for index in range(len(self._instruments.optimizers)):
            if ran[OPTIMIZERS + index]:
                weights = self._instruments.update_weights(index) or {-1: 1.0}
                total, offset = sum(weights.values()), 0.0
                for owner, weight in weights.items():
                    name = units[owner].name if owner >= 0 else OTHER_UNIT
                    rows.append(
                        (OPTIMIZERS + index, name, Phase.UPDATE, How.ALLOCATED, weight / total, offset)
                    )
                    offset += weight / total
        codes, names, phases, hows, shares, offsets = (
            (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [], [], [])
        )
        return Plan(np.array(codes, dtype=np.int64), names, phases, hows, np.array(shares), np.array(offsets))


def layer_columns(blocks: Sequence[LayerBlock]) -> dict[str, Any]:
    """The columns of the layer table for many steps."""

    def each(values: Callable[[LayerBlock], Any]) -> list[Any]:
        return [values(block) for block in blocks for _ in range(len(block.plan.codes))]

    def chain(values: Callable[[LayerBlock], Iterable[Any]]) -> list[Any]:
        return [value for block in blocks for value in values(block)]

    def nothing(block: LayerBlock) -> list[None]:
        return [None] * len(block.plan.codes)

    return {
        "stage": each(lambda block: str(block.step.stage)),
        "attempt": each(lambda block: block.step.attempt),
        "step": each(lambda block: block.step.step),
        "rank": each(lambda block: block.step.rank),
        "layer": chain(lambda block: block.plan.names),
        "phase": chain(lambda block: block.plan.phases),
        "start_s": np.concatenate([block.starts for block in blocks]),
        "seconds": np.concatenate([block.seconds for block in blocks]),
        "calls": np.concatenate([block.calls for block in blocks]),
        "how": chain(lambda block: block.plan.hows),
        "busy_s": chain(lambda block: nothing(block) if block.busy is None else block.busy),
        "idle_s": chain(lambda block: nothing(block) if block.busy is None else block.seconds - block.busy),
        "memory_bytes": chain(lambda block: block.memory or nothing(block)),
    }


def _split_idle(seconds: dict[Account, float], settled: Settled, trace: StepTrace) -> None:
    """On a traced step the compute accounts hold busy time and `idle` what was left of their spans."""
    busy = np.zeros(len(ACCOUNTS))
    table = account_of(len(settled.seconds))
    for code, value in trace.busy_s.items():
        if code < len(settled.seconds):
            busy[table[code]] += min(value, float(settled.seconds[code]))
    idle = 0.0
    for account in COMPUTE:
        span = seconds[account]
        seconds[account] = min(span, float(busy[CODE[account]]))
        idle += span - seconds[account]
    seconds[Account.IDLE] = idle


_side_streams: dict[int, Any] = {}


def _read(value: torch.Tensor) -> float:
    """The number in a tensor that is already computed. On CUDA read on a side stream, so nothing waits."""
    if value.device.type != "cuda":
        return float(value)
    index = value.device.index or 0
    stream = _side_streams.setdefault(index, torch.cuda.Stream(index))
    with torch.cuda.stream(stream):
        return float(value)
