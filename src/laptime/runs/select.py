"""Which steps of a run count, decided here once for accounts, layers, figures and comparisons.

Of a stage's steps these are left out: steps that a later attempt took again after a resume; the first steps
of each attempt and rank, which warm up; kernel-traced steps, which the tracer slows; and steps that starting
or reading a trace disturbed. All ranks count. Where nothing would be left, the rule that left too much out is
dropped: a run of one step shows that step, and a run that was traced throughout shows its traced steps.

The layer times that count are those of the same steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.model import COMPUTE, How, LayerTime, Stage, Step
from laptime.runs.table_reader import StoredTable, find_repeats

Mask = NDArray[np.bool_]
Samples = NDArray[np.float64]
LayerPhase = tuple[str, str]  # a layer's name and a phase


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of a stored table: numbers as arrays (null is NaN), strings as codes into a list of words.

    A column with the same value in every row takes the memory of one.
    """

    rows: int
    _arrays: Mapping[str, NDArray[Any]]
    _known: Mapping[str, Mask]  # of columns with nulls
    words: Mapping[str, list[str]]

    @classmethod
    def read(cls, stored: StoredTable[Any], names: Sequence[str]) -> Columns:
        """These columns of a table on disk."""
        return cls.of(stored.read(names, coded=True), stored.schema.repeated)

    @classmethod
    def of(cls, table: Any, repeated: Collection[str]) -> Columns:
        """Of an Arrow table, whose strings are the columns in `repeated`."""
        rows = int(table.num_rows)
        arrays: dict[str, NDArray[Any]] = {}
        known: dict[str, Mask] = {}
        words: dict[str, list[str]] = {}
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            table = table.drop_columns([name])  # or all columns would be in memory twice
            if name in repeated:
                words[name] = column.dictionary.to_pylist()
                codes = column.indices.to_numpy(zero_copy_only=False)
                arrays[name] = _compact(codes.astype(np.min_scalar_type(len(words[name]))))
            elif rows and column.null_count == rows:  # as the times that only a trace tells
                arrays[name] = np.broadcast_to(np.float64(np.nan), rows)
                known[name] = np.broadcast_to(np.False_, rows)
            else:
                arrays[name] = _compact(column.to_numpy(zero_copy_only=False))
                if column.null_count:
                    known[name] = column.is_valid().to_numpy(zero_copy_only=False)
        return cls(rows, arrays, known, words)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def known(self, name: str) -> Mask:
        """Rows that have a value; a NaN that was recorded is one."""
        return self._known.get(name, np.broadcast_to(np.True_, self.rows))

    def word(self, name: str, row: int) -> str:
        """The string of a row."""
        return self.words[name][int(self[name][row])]

    def equals(self, name: str, word: str) -> Mask:
        """Rows whose string is `word`."""
        words = self.words[name]
        if word not in words:
            return np.zeros(self.rows, dtype=np.bool_)
        return np.asarray(self[name] == words.index(word))

    def where(self, mask: Mask) -> Columns:
        """The rows of `mask`, copied only where they are not all there is."""
        if mask.all():  # as where a run has one stage; copying three million rows takes 0.3 s
            return self
        return self.at(np.flatnonzero(mask))

    def at(self, rows: NDArray[Any], names: Collection[str] | None = None) -> Columns:
        """The rows at these places, in this order; of the columns `names`, else of all."""
        names = self._arrays if names is None else names
        return Columns(
            len(rows),
            {name: _taken(self._arrays[name], rows) for name in names},
            {name: _taken(self._known[name], rows) for name in names if name in self._known},
            {name: words for name, words in self.words.items() if name in names},
        )

    def row(self, place: int) -> dict[str, Any]:
        """One row as it was stored: None is null."""
        values: dict[str, Any] = {}
        for name, array in self._arrays.items():
            value = self.word(name, place) if name in self.words else array[place].item()
            values[name] = value if name not in self._known or self._known[name][place] else None
        return values


def _compact(array: NDArray[Any]) -> NDArray[Any]:
    """The same values; where all are equal, one in memory."""
    if len(array) > 1 and array[0] == array[-1] and (array == array[0]).all():
        return np.broadcast_to(array[0].copy(), array.shape)
    return array


def _taken(array: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    if array.strides == (0,):
        return np.broadcast_to(array[0] if len(array) else array.dtype.type(0), len(rows))
    taken: NDArray[Any] = array[rows]
    return taken


def kernel_traced(every: Columns) -> Mask:
    """Steps whose idle time a kernel trace tells; that of a pipeline's stage is known by its bubbles."""
    return np.asarray(~np.isnan(every["idle_s"]) & np.isnan(every["bubble_fill_s"]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedSteps:
    """The steps of one stage that count, as masks over every step of it."""

    stage: Stage
    every: Columns  # rank by rank, in the order they were taken; of a step taken again, the last attempt
    counted: Mask
    traced: Mask  # kernel-traced, past the warm-up; not counted where there are others
    warm_up: Mask
    skipped: int  # first steps left out of each attempt and rank; 0 where no others were left

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column of the steps that count."""
        column = self.every[name]
        return column if self.counted.all() else _taken(column, np.flatnonzero(self.counted))

    def __len__(self) -> int:
        return int(np.count_nonzero(self.counted))

    @property
    def all_traced(self) -> bool:
        """Whether the times include the tracer's cost, since every step was traced."""
        return bool(len(self) and self.traced[self.counted].all())

    @property
    def devices(self) -> dict[int, str]:
        """By rank, the device of its first step."""
        ranks, first = np.unique(self.every["rank"], return_index=True)
        return {int(rank): self.every.word("device", place) for rank, place in zip(ranks, first, strict=True)}

    @property
    def of_first_rank(self) -> Mask:
        """Every step once: the rows of the lowest rank."""
        ranks = self.every["rank"]
        return np.asarray(ranks == ranks.min(initial=np.iinfo(np.int32).max))

    def compute_s(self, steps: Mask) -> float:
        """Mean seconds of forward, loss, backward and update in these of every step; NaN of none."""
        chosen = np.flatnonzero(steps)
        seconds = sum(_taken(self.every[account.column], chosen) for account in COMPUTE)
        return float(np.mean(seconds)) if chosen.size else float("nan")


def step_keys(rows: Columns | SelectedSteps) -> NDArray[np.int64]:
    """One number for each step, the same for all ranks that took it together.

    Ranks that update without waiting for each other take none together, and number their steps differently,
    since only some validate in between: their n-th steps have the same number here.
    """
    if asynchronous(rows):
        ranks = rows["rank"]
        order = np.argsort(ranks, kind="stable")
        _, first, place = np.unique(ranks[order], return_index=True, return_inverse=True)
        keys = np.empty(len(ranks), dtype=np.int64)
        keys[order] = np.arange(len(ranks)) - first[place]
        return keys
    return np.asarray(rows["attempt"].astype(np.int64) << 40 | rows["step"].astype(np.int64))


def asynchronous(rows: Columns | SelectedSteps) -> bool:
    """Whether these are steps of ranks that update parameters which others may have changed since."""
    return not np.isnan(rows["staleness"]).all()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """Every step of a run, stage by stage, read once."""

    stages: Mapping[Stage, Columns]
    repeated_steps: int  # how many steps of one rank a later attempt took again

    @property
    def ranks(self) -> list[int]:
        """Those that took steps."""
        return sorted({rank for every in self.stages.values() for rank in np.unique(every["rank"]).tolist()})

    @property
    def end_s(self) -> float:
        """When the last step ended, on the clock of the steps; 0 without any."""
        return max(
            float((every["start_s"] + every["wall_s"]).max(initial=0.0)) for every in self.stages.values()
        )


class RunTables:
    """The steps and the layer times of a run, each read once, and which of them count."""

    def __init__(
        self,
        steps: StoredTable[Step],
        layers: StoredTable[LayerTime],
        *,
        columns: Sequence[str] | None = None,  # of the steps; else all
    ) -> None:
        self._columns = columns or steps.schema.arrow.names
        self._stored_steps = replace(steps, every_attempt=True)
        self._stored_layers = replace(layers, every_attempt=True)  # rows of other steps are left out anyway
        self._selected: dict[tuple[Stage, int, bool | None], SelectedSteps] = {}

    @cached_property
    def steps(self) -> StepTable:
        """Every step, but those that a later attempt took again."""
        table = self._stored_steps.read(self._columns, coded=True)
        repeats = find_repeats(table)
        columns = Columns.of(repeats.without(table) if repeats else table, self._stored_steps.schema.repeated)
        return StepTable(
            stages={stage: columns.where(columns.equals("stage", stage)) for stage in Stage},
            repeated_steps=repeats.steps(),
        )

    @cached_property
    def layers(self) -> dict[Stage, LayerRows]:
        """Every layer time of these steps."""
        columns = Columns.read(self._stored_layers, self._stored_layers.schema.arrow.names)
        return {stage: _grouped(columns, stage, self.steps.stages[stage]) for stage in Stage}

    def select(
        self, stage: Stage, *, skip: int, instrumented: bool | None, disturbed: Collection[int]
    ) -> SelectedSteps:
        """The steps of a stage that count. `instrumented` takes those with or without layer marks only."""
        key = (stage, skip, instrumented)
        if key in self._selected:
            return self._selected[key]
        every = self.steps.stages[stage]
        past = _past_warm_up(every, skip)
        skipped = skip if past.any() else 0
        usable = past if skipped else np.ones(every.rows, dtype=np.bool_)
        warm_up = ~usable
        if instrumented is not None:
            usable = usable & (every["instrumented"] == instrumented)
        traced = usable & kernel_traced(every)
        plain = usable & ~traced
        calm = plain & ~np.isin(every["step"], list(disturbed))
        counted = next((mask for mask in (calm, plain) if mask.any()), usable)
        self._selected[key] = SelectedSteps(
            stage=stage, every=every, counted=counted, traced=traced, warm_up=warm_up, skipped=skipped
        )
        return self._selected[key]


def _past_warm_up(every: Columns, skip: int) -> Mask:
    """Rows past the first `skip` steps of their attempt and rank, which fill caches and build lazy state."""
    past = np.zeros(every.rows, dtype=np.bool_)
    lanes = _lanes(every)
    for lane in np.unique(lanes):
        here = lanes == lane
        past |= here & (every["step"] >= every["step"][here].min() + skip)
    return past


def _lanes(columns: Columns) -> NDArray[np.int64]:
    """One number per attempt and rank: the rows of one process' one try."""
    return columns["attempt"].astype(np.int64) << 32 | columns["rank"].astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCells:
    """One layer in one phase: a number for each step that has it."""

    step: NDArray[np.int32]  # its place among every step of the stage
    seconds: Samples
    calls: Samples
    busy_s: Samples
    idle_s: Samples
    memory_bytes: Samples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerRows:
    """The layer times of one stage: the rows of a layer and phase lie together, in the order of the steps."""

    owners: Mapping[LayerPhase, slice]
    step: NDArray[np.int32]  # the place of its step among every step of the stage
    columns: Columns
    repeated: bool  # whether a layer has several rows of one phase in one step

    def how(self, owner: LayerPhase) -> str:
        """How its times were obtained: measured only where every one was."""
        words = self.columns.words["how"]
        kinds = {words[code] for code in np.unique(self.columns["how"][self.owners[owner]])}
        return min(kinds - {How.MEASURED.value}, default=How.MEASURED.value)

    def cells(self, steps: Mask) -> Iterator[tuple[LayerPhase, LayerCells]]:
        """By layer and phase, the rows of these steps; those of one step are added up."""
        chosen = steps[self.step]
        every = bool(chosen.all())
        for owner, rows in self.owners.items():
            places = np.arange(rows.start, rows.stop)
            if not every:
                places = places[chosen[rows]]
            if places.size:
                yield owner, self._added_up(places)

    def _added_up(self, places: NDArray[np.intp]) -> LayerCells:
        step = self.step[places]
        starts = np.flatnonzero(np.diff(step, prepend=-1)) if self.repeated else np.arange(len(step))

        def values(name: str, add: np.ufunc = np.add) -> Samples:
            array = _taken(self.columns[name], places)
            if len(starts) < len(step):
                array = add.reduceat(array.astype(np.float64), starts)
            return array if array.strides == (0,) else array.astype(np.float64, copy=False)

        return LayerCells(
            step=step[starts],
            seconds=values("seconds"),
            calls=values("calls"),
            busy_s=values("busy_s"),
            idle_s=values("idle_s"),
            memory_bytes=values("memory_bytes", np.fmax),
        )

    def of_step(self, place: int) -> Iterator[tuple[LayerPhase, dict[str, Any]]]:
        """The rows of one step."""
        at = np.flatnonzero(self.step == place)
        for owner, rows in self.owners.items():
            for row in at[(at >= rows.start) & (at < rows.stop)]:
                yield owner, self.columns.row(int(row))


_VALUES = ("start_s", "seconds", "calls", "how", "busy_s", "idle_s", "memory_bytes")


def _grouped(columns: Columns, stage: Stage, steps: Columns) -> LayerRows:
    """Rows of a stage, sorted by layer and phase and within that by step."""
    rows = np.flatnonzero(columns.equals("stage", stage))
    place = _places(columns, rows, steps)
    if (place < 0).any():
        rows, place = rows[place >= 0], place[place >= 0]
    layers, phases = columns.words["layer"], columns.words["phase"]
    owner = _taken(columns["layer"], rows).astype(np.int32) * len(phases) + _taken(columns["phase"], rows)
    # A stable sort of 16-bit keys is a radix sort, ten times as fast; rows of a key stay in order.
    short = len(layers) * len(phases) <= 1 << 16
    order = np.argsort(owner.astype(np.uint16) if short else owner, kind="stable")
    owner, place = owner[order], place[order]
    same = owner[1:] == owner[:-1]
    if (same & (np.diff(place) < 0)).any():  # as where parts of several ranks were written in turns
        again = np.lexsort((place, owner))
        order, owner, place = order[again], owner[again], place[again]
        same = owner[1:] == owner[:-1]
    edges = [0, *(np.flatnonzero(~same) + 1).tolist(), len(owner)] if len(owner) else []
    owners = {
        (layers[int(owner[low]) // len(phases)], phases[int(owner[low]) % len(phases)]): slice(low, high)
        for low, high in pairwise(edges)
    }
    return LayerRows(
        owners=owners,
        step=place,
        columns=columns.at(rows[order], _VALUES),
        repeated=bool((same & (np.diff(place) == 0)).any()),
    )


def _places(columns: Columns, rows: NDArray[np.intp], steps: Columns) -> NDArray[np.int32]:
    """Of each row, the place of its step among `steps`; -1 where that is not one of them."""
    places = np.full(len(rows), -1, dtype=np.int32)
    number, of_steps = _taken(columns["step"], rows), _lanes(steps)
    lanes = np.unique(of_steps)
    single = len(lanes) == 1 and columns["attempt"].strides == columns["rank"].strides == (0,)
    of_rows = None if single else _taken(_lanes(columns), rows)
    for lane in lanes:
        at = np.flatnonzero(of_steps == lane)
        numbers = steps["step"][at]
        here = slice(None) if of_rows is None else of_rows == lane
        places[here] = _looked_up(number[here], numbers, at)
    return places


def _looked_up(wanted: NDArray[Any], numbers: NDArray[Any], at: NDArray[np.intp]) -> NDArray[Any]:
    """`at` where `numbers` holds what is wanted, else -1: from a list by number, faster than a search."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < 4 * len(numbers) + 1024:
        listed = np.full(high - low + 3, -1, dtype=np.int32)
        listed[numbers - low + 1] = at
        positions: NDArray[Any] = listed[np.clip(wanted - low + 1, 0, high - low + 2)]
        return positions
    order = np.argsort(numbers)  # a log may number its steps as it likes
    near = np.minimum(np.searchsorted(numbers, wanted, sorter=order), len(numbers) - 1)
    return np.where(numbers[order[near]] == wanted, at[order[near]], -1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedLayers:
    """The layer times that count: of the counted steps that have layer marks.

    Where no counted step has any, of others: of the warm-up, or of traced steps.
    """

    steps: SelectedSteps
    rows: LayerRows
    timed: Mask  # the steps that times are taken from, over every step of the stage
    traced: Mask  # the steps that busy and idle time are taken from

    @property
    def count(self) -> int:
        """How many steps, of all ranks and attempts, times are taken from."""
        return int(np.count_nonzero(self.timed))

    @property
    def skipped(self) -> int:
        """First steps left out of each attempt; 0 where no other step had layer marks."""
        return 0 if (self.timed & self.steps.warm_up).any() else self.steps.skipped

    @property
    def all_traced(self) -> bool:
        """Whether the times include the tracer's cost, since only traced steps have layer times."""
        return bool(self.count and kernel_traced(self.steps.every)[self.timed].all())

    def cells(self) -> Iterator[tuple[LayerPhase, LayerCells]]:
        """By layer and phase, a number for each step that times are taken from and that has it."""
        return self.rows.cells(self.timed)

    def seconds(self) -> tuple[NDArray[np.int32], NDArray[np.int32], Samples]:
        """The same as three long columns: the place among the owners, that of the step, and the seconds."""
        lengths = [rows.stop - rows.start for rows in self.rows.owners.values()]
        owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        step, seconds = self.rows.step, self.rows.columns["seconds"]
        if self.rows.repeated:
            starts = np.flatnonzero((np.diff(step, prepend=-1) != 0) | (np.diff(owner, prepend=-1) != 0))
            owner, step, seconds = owner[starts], step[starts], np.add.reduceat(seconds, starts)
        chosen = self.timed[step]
        return (owner, step, seconds) if chosen.all() else (owner[chosen], step[chosen], seconds[chosen])


def select_layers(steps: SelectedSteps, rows: LayerRows) -> SelectedLayers:
    """The layer times of the steps that count."""
    marked = np.zeros(steps.every.rows, dtype=np.bool_)
    marked[rows.step] = True
    plain = ~kernel_traced(steps.every)
    choices = (steps.counted, plain & ~steps.warm_up, plain, steps.traced)
    timed = next((marked & mask for mask in choices if (marked & mask).any()), marked)
    return SelectedLayers(
        steps=steps, rows=rows, timed=timed, traced=marked & (steps.traced if steps.traced.any() else ~plain)
    )
