"""Step breakdown: the marks of finished steps become step rows and layer rows, many steps at a time.

This runs on a background thread. While it holds Python's lock the training thread cannot launch anything, so
everything here works on whole arrays: an object per step or row slowed a launch-bound loop by a third.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch
from numpy.typing import NDArray

from laptime.errors import UnbalancedStep
from laptime.model import ACCOUNTS, COMPUTE, Account, How, Phase
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.model.step import RELATIVE_TOLERANCE, TOLERANCE_S
from laptime.recorder.arguments import as_number
from laptime.recorder.backends import backend_of
from laptime.recorder.clocks import Clock
from laptime.recorder.kernel_alignment import clock_shift
from laptime.recorder.kernel_trace import StepTrace
from laptime.recorder.network_hooks import NetworkHooks
from laptime.recorder.timeline import (
    BACKWARD,
    CODE,
    FORWARD,
    LOSS,
    LOSS_BACKWARD,
    OPTIMIZERS,
    UNITS,
    RawStep,
    Tiles,
    account_of,
    tile,
)
from laptime.runs import from_columns

# Owners of the layer table that are no module: (row name, phase) by owner code.
PSEUDO = {
    LOSS: (LOSS_LAYER, Phase.FORWARD),
    LOSS_BACKWARD: (LOSS_LAYER, Phase.BACKWARD),
    FORWARD: (OTHER_LAYER, Phase.FORWARD),
    BACKWARD: (OTHER_LAYER, Phase.BACKWARD),
}
IDLE = CODE[Account.IDLE]
UNEXPLAINED = CODE[Account.UNEXPLAINED]


@dataclass(frozen=True, slots=True)
class OwnerRows:
    """Where the seconds of one owner code go: rows of (layer, phase), each with a share of the seconds."""

    layers: list[str]
    phase: str
    how: str
    shares: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClosedSteps:
    """A batch of closed steps: their tables, and the figures that the recorder needs."""

    raws: Sequence[RawStep]
    walls: NDArray[np.float64]
    accounts: NDArray[np.float64]
    starts: NDArray[np.float64]
    steps: pa.Table
    layers: pa.Table | None
    kernels: pa.Table | None
    compute_s: float
    named_s: float


class Breakdown:
    """Closes batches of steps one after the other; keeps only running sums."""

    def __init__(
        self, clock: Clock, hooks: NetworkHooks, *, layers: bool = True, elapsed_s: float = 0.0
    ) -> None:
        self._clock = clock
        self._hooks = hooks
        self._wanted = layers  # without: the step that finds the layers, a warm-up, would be their only one
        self._owners: dict[int, OwnerRows] = {}
        self._version = -1
        self.elapsed_s = elapsed_s  # end of the last closed step, since the start of the run
        self.problems: list[str] = []

    def close(self, raws: Sequence[RawStep]) -> ClosedSteps:
        """The rows of a batch of steps whose stamps have been read."""
        spans = [self._clock.read(raw.stamps) if raw.read is None else raw.read for raw in raws]
        tiles = tile(spans, [raw.owners for raw in raws], self._hooks.is_layer())
        ends = self.elapsed_s + np.cumsum(tiles.walls)
        starts = ends - tiles.walls
        self.elapsed_s = float(ends[-1])
        accounts = tiles.accounts.copy()
        accounts[:, IDLE] = np.nan
        for index, raw in enumerate(raws):
            if raw.trace is not None:
                _split_idle(accounts, index, tiles, raw.trace)
        accounts[:, UNEXPLAINED] = 0.0
        accounts[:, UNEXPLAINED] = tiles.walls - np.nansum(accounts, axis=1)
        check(tiles.walls, accounts)
        layers, compute_s, named_s = self._layers(raws, tiles, starts)
        return ClosedSteps(
            raws=raws,
            walls=tiles.walls,
            accounts=accounts,
            starts=starts,
            steps=self._steps(raws, tiles, starts, accounts),
            layers=layers,
            kernels=self._kernels(raws, tiles, starts),
            compute_s=compute_s,
            named_s=named_s,
        )

    def _steps(
        self,
        raws: Sequence[RawStep],
        tiles: Tiles,
        starts: NDArray[np.float64],
        accounts: NDArray[np.float64],
    ) -> pa.Table:
        columns: dict[str, Any] = {name: [raw.fields[name] for raw in raws] for name in raws[0].fields}
        columns |= {account.column: accounts[:, index] for index, account in enumerate(ACCOUNTS)}
        columns |= self._logged(raws)
        return from_columns(
            "steps",
            columns
            | {
                "device": self._clock.device,
                "start_s": starts,
                "wall_s": tiles.walls,
                "instrumented": [raw.instrumented for raw in raws],
            },
        )

    def _logged(self, raws: Sequence[RawStep]) -> dict[str, list[float | None]]:
        numbers: dict[str, list[float | None]] = {}
        for name in sorted({name for raw in raws for name in raw.logged}):
            values: list[Any] = []
            for raw in raws:
                value, version = raw.logged.get(name, (None, 0))
                if isinstance(value, torch.Tensor) and value._version != version:
                    self._note(
                        f"{name} was changed in place after it was logged; log a copy to keep its value"
                    )
                    value = None
                values.append(self._asked(name, value) if callable(value) else value)
            numbers[name] = read_numbers(values)
        return numbers

    def _asked(self, name: str, function: Any) -> Any:
        """The result of a logged function, as a number."""
        try:
            value = function()
        except Exception as error:
            self._note(f"a function for {name} raised {type(error).__name__}, so it was left out")
            return None
        return value if isinstance(value, torch.Tensor) and value.numel() == 1 else as_number(value)

    def _note(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    # -- layers ----------------------------------------------------------------------------------------------

    def _layers(
        self, raws: Sequence[RawStep], tiles: Tiles, starts: NDArray[np.float64]
    ) -> tuple[pa.Table | None, float, float]:
        """Layer rows of the instrumented steps, and the seconds in them: all, and those with a name."""
        marked = np.flatnonzero([raw.instrumented and self._wanted for raw in raws])
        owners = [(column, self._owner(code)) for column, code in enumerate(tiles.codes.tolist())]
        known = [(column, owner) for column, owner in owners if owner is not None]
        if not len(marked) or not known:
            return None, 0.0, 0.0
        # One entry per owner and layer: a layer's marks have one, an optimizer one for each layer it updates.
        columns = np.array([column for column, owner in known for _ in owner.layers])
        shares = np.concatenate([owner.shares for _, owner in known])
        offsets = np.concatenate([np.cumsum(owner.shares) - owner.shares for _, owner in known])
        names = [name for _, owner in known for name in owner.layers]
        ran = (tiles.calls[np.ix_(marked, columns)] > 0) | (tiles.seconds[np.ix_(marked, columns)] > 0)
        which, entry = np.nonzero(ran)
        began = tiles.starts[marked[which], columns[entry]]
        began = began + tiles.seconds[marked[which], columns[entry]] * offsets[entry]
        order = np.lexsort((began, which))  # by step, then by start
        which, entry, began = which[order], entry[order], began[order]
        step, column = marked[which], columns[entry]
        spans = tiles.seconds[step, column]
        seconds = spans * shares[entry]
        table = from_columns(
            "layers",
            {
                **{name: _words([raw.fields[name] for raw in raws], step) for name in ("stage",)},
                **{
                    name: np.array([raw.fields[name] for raw in raws])[step]
                    for name in ("attempt", "step", "rank")
                },
                "layer": _words(names, entry),
                "phase": _words([owner.phase for _, owner in known for _ in owner.layers], entry),
                "how": _words([owner.how for _, owner in known for _ in owner.layers], entry),
                "start_s": starts[step] + began,
                "seconds": seconds,
                "calls": np.maximum(1, tiles.calls[step, column]),
                **_traced(raws, step, tiles.codes[column], spans, shares[entry]),
            },
        )
        unnamed = np.array([name == OTHER_LAYER for name in names])[entry]
        return table, float(seconds.sum()), float(seconds[~unnamed].sum())

    def _owner(self, code: int) -> OwnerRows | None:
        """Where an owner's seconds go in the layer table; None for accounts that are no layer's."""
        if self._version != self._hooks.version:
            self._version = self._hooks.version
            self._owners.clear()
        if code not in self._owners and (code >= OPTIMIZERS or code in PSEUDO):
            self._owners[code] = self._make_owner(code)
        return self._owners.get(code)

    def _make_owner(self, code: int) -> OwnerRows:
        units = self._hooks.units
        if code >= UNITS:
            unit, backward = divmod(code - UNITS, 2)
            phase = Phase.BACKWARD if backward else Phase.FORWARD
            return OwnerRows([units[unit].name], phase, How.MEASURED, np.ones(1))
        if code < OPTIMIZERS:
            name, phase = PSEUDO[code]
            return OwnerRows([name], phase, How.MEASURED, np.ones(1))
        # No optimizer has a boundary per parameter: its time is split by parameter bytes, and says so.
        weights = self._hooks.update_weights(code - OPTIMIZERS) or {-1: 1.0}
        names = [units[owner].name if owner >= 0 else OTHER_LAYER for owner in weights]
        shares = np.array(list(weights.values()))
        return OwnerRows(names, Phase.UPDATE, How.ALLOCATED, shares / shares.sum())

    # -- kernels ---------------------------------------------------------------------------------------------

    def _kernels(self, raws: Sequence[RawStep], tiles: Tiles, starts: NDArray[np.float64]) -> pa.Table | None:
        """The kernels of traced steps, each with the layer that launched it."""
        tables = []
        for index, (raw, start) in enumerate(zip(raws, starts.tolist(), strict=True)):
            if raw.trace is None or not raw.trace.kernels:
                continue
            start -= clock_shift(raw.trace.kernels, _spans(tiles, index))
            places = [self._place(kernel.code) for kernel in raw.trace.kernels]
            tables.append(
                from_columns(
                    "kernels",
                    {
                        **{name: raw.fields[name] for name in ("stage", "attempt", "step", "rank")},
                        "layer": [layer for layer, _ in places],
                        "phase": [phase for _, phase in places],
                        "kind": [kernel.kind for kernel in raw.trace.kernels],
                        "name": [kernel.name for kernel in raw.trace.kernels],
                        "stream": [kernel.stream for kernel in raw.trace.kernels],
                        "start_s": [start + kernel.start_s for kernel in raw.trace.kernels],
                        "seconds": [kernel.seconds for kernel in raw.trace.kernels],
                    },
                )
            )
        return pa.concat_tables(tables) if tables else None

    def _place(self, code: int) -> tuple[str, str]:
        owner = self._owner(code)
        if owner is None:  # work of the recorder itself counts as host time
            account = ACCOUNTS[code] if code < len(ACCOUNTS) else Account.HOST
            return OTHER_LAYER, (Account.HOST if account is Account.INSTRUMENT else account).value
        return (owner.layers[0] if len(owner.layers) == 1 else OTHER_LAYER), owner.phase


@functools.cache
def rehearse() -> None:
    """Warm up: with its first array, Arrow loads numpy.ma, and pandas where installed."""
    np.quantile(np.zeros(2), 0.5)
    pa.array(_words(["word"], np.zeros(1, dtype=np.int64)), from_pandas=True).cast(pa.string())


def _words(words: Sequence[str], index: NDArray[np.int64]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        pa.array(index, type=pa.int32()), pa.array(list(words), type=pa.string())
    )


def _spans(tiles: Tiles, index: int) -> dict[int, tuple[float, float]]:
    """First and last moment of each layer's pass in a step, where it ran once."""
    return {
        int(code): (float(begin), float(begin + seconds))
        for code, begin, seconds, calls in zip(
            tiles.codes, tiles.starts[index], tiles.seconds[index], tiles.calls[index], strict=True
        )
        if code >= UNITS and calls <= 1 and seconds > 0
    }


def _traced(
    raws: Sequence[RawStep],
    step: NDArray[np.int64],
    codes: NDArray[np.int64],
    spans: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> dict[str, Any]:
    """Busy and idle time and memory of layer rows, where a kernel trace knows them."""
    if all(raw.trace is None for raw in raws):
        return {}
    busy = np.full(len(step), np.nan)
    memory: list[int | None] = [None] * len(step)
    for row, (index, code) in enumerate(zip(step.tolist(), codes.tolist(), strict=True)):
        trace: StepTrace | None = raws[index].trace
        if trace is not None:
            busy[row] = min(trace.busy_s.get(code, 0.0), spans[row])
            memory[row] = trace.peak_bytes.get(code)
    return {"busy_s": busy * shares, "idle_s": (spans - busy) * shares, "memory_bytes": memory}


def _split_idle(accounts: NDArray[np.float64], index: int, tiles: Tiles, trace: StepTrace) -> None:
    """On a traced step the compute accounts hold busy time and `idle` what was left of their spans."""
    busy = np.zeros(len(ACCOUNTS))
    places = account_of(tiles.codes)
    for column, code in enumerate(tiles.codes.tolist()):
        busy[places[column]] += min(trace.busy_s.get(code, 0.0), float(tiles.seconds[index, column]))
    compute = [CODE[account] for account in COMPUTE]
    spans = accounts[index, compute]
    accounts[index, compute] = np.minimum(spans, busy[compute])
    accounts[index, IDLE] = float((spans - accounts[index, compute]).sum())


def check(walls: NDArray[np.float64], accounts: NDArray[np.float64]) -> None:
    """Refuse a batch with a step that does not balance: the rule of `Step`, for whole arrays."""
    tolerance = TOLERANCE_S + RELATIVE_TOLERANCE * np.abs(walls)
    wrong = ~np.isfinite(walls) | (walls < 0) | (np.nan_to_num(accounts) < -tolerance[:, None]).any(axis=1)
    wrong |= np.abs(np.nansum(accounts, axis=1) - walls) > tolerance
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        raise UnbalancedStep(
            f"the accounts of a step do not add up: {accounts[index].tolist()} s of {walls[index]:.9f} s"
        )


def read_numbers(values: Sequence[Any]) -> list[float | None]:
    """Values of tensors that are already computed, with one read per device and dtype."""
    numbers: list[float | None] = [
        None if isinstance(value, torch.Tensor | None) else as_number(value) for value in values
    ]
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            groups.setdefault((value.device, value.dtype), []).append(index)
    for (device, _), indices in groups.items():
        tensors = [values[index].reshape(()) for index in indices]
        for index, number in zip(indices, backend_of(device).read_numbers(device, tensors), strict=True):
            numbers[index] = float(number)
    return numbers
