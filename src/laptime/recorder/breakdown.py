"""Step breakdown: the marks of finished steps become step rows and layer rows, many steps at a time.

This runs on a background thread. While it holds Python's lock the training thread cannot launch anything, so
everything here works on whole arrays: an object per step or row slowed a launch-bound loop by a third.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch
from numpy.typing import NDArray

from laptime.errors import UnbalancedStep
from laptime.model import ACCOUNTS, COMPUTE, Account, How, Phase, Stage
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.model.step import RELATIVE_TOLERANCE, TOLERANCE_S
from laptime.recorder.arguments import as_number
from laptime.recorder.backends import Clock, backend_of
from laptime.recorder.kernel_trace import clock_shift
from laptime.recorder.network_hooks import NetworkHooks
from laptime.recorder.timeline import (
    BACKWARD,
    BUBBLES,
    CAUSES,
    CODE,
    COLLECTIVES,
    FORWARD,
    IDLE,
    KINDS,
    LOSS,
    LOSS_BACKWARD,
    OPTIMIZERS,
    POINT_TO_POINT,
    UNITS,
    RawStep,
    Tiles,
    account_of,
    tile,
)
from laptime.runs import from_columns
from laptime.runs.table_reader import KEY

# Owners of the layer table that are no module: (row name, phase) by owner code.
PSEUDO = {
    LOSS: (LOSS_LAYER, Phase.FORWARD),
    LOSS_BACKWARD: (LOSS_LAYER, Phase.BACKWARD),
    FORWARD: (OTHER_LAYER, Phase.FORWARD),
    BACKWARD: (OTHER_LAYER, Phase.BACKWARD),
}
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
    tables: Mapping[str, pa.Table | None]  # steps, layers, kernels
    compute_s: float
    named_s: float
    exposed_s: Mapping[str, float]  # by kind of collective, in training steps


class Breakdown:
    """Closes batches of steps one after the other; keeps only running sums."""

    def __init__(
        self,
        clock: Clock,
        hooks: NetworkHooks,
        note: Callable[[str], None],
        *,
        layers: bool = True,
        elapsed_s: float = 0.0,
    ) -> None:
        self._clock = clock
        self._hooks = hooks
        self._note = note
        self._wanted = layers  # without: the step that finds the layers, a warm-up, would be their only one
        self._owners: dict[int, OwnerRows] = {}
        self._version = -1
        self.elapsed_s = elapsed_s  # end of the last closed step, since the start of the run

    def close(self, raws: Sequence[RawStep]) -> ClosedSteps:
        """The rows of a batch of steps whose stamps have been read."""
        spans = [raw.read_stamps(self._clock) if raw.read is None else raw.read for raw in raws]
        tiles = tile(spans, [raw.owners for raw in raws], self._hooks.is_layer())
        ends = self.elapsed_s + np.cumsum(tiles.walls)
        starts = ends - tiles.walls
        self.elapsed_s = float(ends[-1])
        accounts = tiles.accounts.copy()
        bubbles = _bubbles(raws, tiles)
        accounts[:, IDLE] = np.sum(
            list(bubbles.values()), axis=0
        )  # NaN, for unknown, in a step that is no pipeline's
        busy = np.full(tiles.seconds.shape, np.nan)  # seconds in kernels, by step and owner, where traced
        places, compute = account_of(tiles.codes), [CODE[account] for account in COMPUTE]
        for index, raw in enumerate(raws):
            if raw.trace is not None:
                # On a traced step the compute accounts hold busy time, `idle` what was left of their spans.
                in_kernels = [raw.trace.busy_s.get(code, 0.0) for code in tiles.codes.tolist()]
                busy[index] = np.minimum(in_kernels, tiles.seconds[index])
                by_account = np.bincount(places, weights=busy[index], minlength=len(ACCOUNTS))
                spans_s = accounts[index, compute]
                accounts[index, compute] = np.minimum(spans_s, by_account[compute])
                waited_s = tiles.accounts[index, IDLE]  # for other stages
                accounts[index, IDLE] = waited_s + float((spans_s - accounts[index, compute]).sum())
        accounts[:, UNEXPLAINED] = 0.0
        accounts[:, UNEXPLAINED] = tiles.walls - np.nansum(accounts, axis=1)
        check(tiles.walls, accounts)
        columns: dict[str, Any] = {name: [raw.fields[name] for raw in raws] for name in raws[0].fields}
        columns |= {account.column: accounts[:, index] for index, account in enumerate(ACCOUNTS)}
        columns |= bubbles | self._logged(raws)
        columns |= {"device": self._clock.device, "start_s": starts, "wall_s": tiles.walls}
        columns["instrumented"] = [raw.instrumented for raw in raws]
        layers, compute_s, named_s = self._layers(raws, tiles, starts, busy)
        return ClosedSteps(
            raws=raws,
            walls=tiles.walls,
            accounts=accounts,
            tables={
                "steps": from_columns("steps", columns),
                "layers": layers,
                "kernels": self._kernels(raws, tiles, starts),
            },
            compute_s=compute_s,
            named_s=named_s,
            exposed_s=_exposed(raws, tiles),
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
                elif callable(value):
                    try:
                        value = value()
                    except Exception as error:
                        self._note(f"a function for {name} raised {type(error).__name__}, so it was left out")
                        value = None
                    if not (isinstance(value, torch.Tensor) and value.numel() == 1):
                        value = as_number(value)
                values.append(value)
            numbers[name] = read_numbers(values)
        return numbers

    # -- layers ----------------------------------------------------------------------------------------------

    def _layers(
        self,
        raws: Sequence[RawStep],
        tiles: Tiles,
        starts: NDArray[np.float64],
        busy: NDArray[np.float64],
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
        traced: dict[str, Any] = {}
        if not np.isnan(busy).all():
            at = zip(step.tolist(), tiles.codes[column].tolist(), strict=True)
            peaks = [(raws[index].trace, code) for index, code in at]
            traced = {
                "busy_s": busy[step, column] * shares[entry],
                "idle_s": (spans - busy[step, column]) * shares[entry],
                "memory_bytes": [trace and trace.peak_bytes.get(code) for trace, code in peaks],
            }
        table = from_columns(
            "layers",
            {
                "stage": _words([raw.fields["stage"] for raw in raws], step),
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
                **traced,
            },
        )
        unnamed = np.array([name == OTHER_LAYER for name in names])[entry]
        return table, float(seconds.sum()), float(seconds[~unnamed].sum())

    def _owner(self, code: int) -> OwnerRows | None:
        """Where an owner's seconds go in the layer table; None for accounts that are no layer's."""
        if self._version != self._hooks.version:
            self._version = self._hooks.version
            self._owners.clear()
        if COLLECTIVES <= code < UNITS:
            return None
        if code not in self._owners and (code >= OPTIMIZERS or code in PSEUDO):
            units = self._hooks.units
            phase, how, shares = Phase.UPDATE, How.MEASURED, np.ones(1)
            if code >= UNITS:
                unit, backward = divmod(code - UNITS, 2)
                names, phase = [units[unit].name], Phase.BACKWARD if backward else Phase.FORWARD
            elif code < OPTIMIZERS:
                name, phase = PSEUDO[code]
                names = [name]
            else:
                # No optimizer has a boundary per parameter: its time is split by bytes, and says so.
                weights = self._hooks.update_weights(code - OPTIMIZERS) or {-1: 1.0}
                names = [units[owner].name if owner >= 0 else OTHER_LAYER for owner in weights]
                shares = np.array(list(weights.values()))
                how, shares = How.ALLOCATED, shares / shares.sum()
            self._owners[code] = OwnerRows(names, phase, how, shares)
        return self._owners.get(code)

    # -- kernels ---------------------------------------------------------------------------------------------

    def _kernels(self, raws: Sequence[RawStep], tiles: Tiles, starts: NDArray[np.float64]) -> pa.Table | None:
        """The kernels of traced steps, each with the layer that launched it."""
        tables = []
        for index, (raw, start) in enumerate(zip(raws, starts.tolist(), strict=True)):
            if raw.trace is None or not raw.trace.kernels:
                continue
            # First and last moment of each layer's pass in the step, where it ran once.
            begins, seconds = tiles.starts[index], tiles.seconds[index]
            once = (tiles.codes >= UNITS) & (tiles.calls[index] <= 1) & (seconds > 0)
            bounds = zip(begins[once].tolist(), (begins + seconds)[once].tolist(), strict=True)
            spans = dict(zip(tiles.codes[once].tolist(), bounds, strict=True))
            start -= clock_shift(raw.trace.kernels, spans)
            kernels = raw.trace.kernels
            columns: dict[str, Any] = {name: raw.fields[name] for name in KEY}
            places = [self._place(kernel.code) for kernel in kernels]
            columns["layer"], columns["phase"] = zip(*places, strict=True)
            for name in ("kind", "name", "stream", "seconds"):
                columns[name] = [getattr(kernel, name) for kernel in kernels]
            columns["start_s"] = [start + kernel.start_s for kernel in kernels]
            tables.append(from_columns("kernels", columns))
        return pa.concat_tables(tables) if tables else None

    def _place(self, code: int) -> tuple[str, str]:
        owner = self._owner(code)
        if owner is None:  # work of the recorder itself counts as host time
            account = ACCOUNTS[int(account_of(np.array([code]))[0])]
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


def _bubbles(raws: Sequence[RawStep], tiles: Tiles) -> dict[str, NDArray[np.float64]]:
    """Seconds of a pipeline's bubbles by step and cause; NaN in others, and in steps with a kernel trace.

    Idle time of a traced step is known by its kernels; where it has bubbles too, nobody could tell which.
    """
    seconds = np.zeros((len(raws), len(CAUSES)))
    here = (tiles.codes >= BUBBLES) & (tiles.codes < UNITS)
    np.add.at(seconds.T, (tiles.codes[here] - BUBBLES) // len(POINT_TO_POINT), tiles.seconds[:, here].T)
    waits = np.count_nonzero(tiles.calls[:, here], axis=1)
    unknown = [raw.trace is not None or not waits[place] for place, raw in enumerate(raws)]
    seconds[unknown] = np.nan
    return {f"bubble_{cause}_s": seconds[:, place] for place, cause in enumerate(CAUSES)}


def _exposed(raws: Sequence[RawStep], tiles: Tiles) -> dict[str, float]:
    """Seconds of waiting by kind of collective, over the training steps; bubbles are such waits, too."""
    training = [raw.fields["stage"] is Stage.TRAIN for raw in raws]
    totals = tiles.seconds[training].sum(axis=0)
    exposed: dict[str, float] = {}
    for code, seconds in zip(tiles.codes.tolist(), totals.tolist(), strict=True):
        if COLLECTIVES <= code < UNITS:
            kind = (*KINDS, *POINT_TO_POINT * len(CAUSES))[code - COLLECTIVES]
            exposed[kind] = exposed.get(kind, 0.0) + seconds
    return exposed


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
