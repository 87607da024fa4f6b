"""A simulated run as a run directory: the same tables as a measured one, and `simulated` in `run.json`.

Ranks of the same stage do the same, so some of them stand for all. In a step the slowest rank computes
longer, and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.estimate.device_speed import device as device_named
from laptime.files.write import write_json
from laptime.model import ACCOUNTS, Account, How, Layer, Phase, Workload
from laptime.model.exchanges import Bucket, Collective, RankExchanges
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER, union
from laptime.ops.rescaling import rescaled
from laptime.runs import Run, RunWriter, load, schema
from laptime.runs.exchanges import exchanges_path
from laptime.simulate.step import LinkTransfer, PlayedRank, Span
from laptime.simulate.training import Simulation

RANKS = 64  # of which rows are kept
LAYER_STEPS = 3  # the first steps, which have layer times; the first of them counts as warm-up
TRACED_STEP = 1  # whose every span and exchange is kept, for Perfetto
MOST_TRACED = 200_000  # rows of it
COMPUTING = (Account.FORWARD, Account.LOSS, Account.BACKWARD, Account.UPDATE, Account.HOST)

Floats = NDArray[np.float64]


def write_run(
    simulation: Simulation, out: Path, *, workload: Workload | None = None, ranks: int = RANKS
) -> Run:
    """Write the steps of up to so many ranks, one of each stage at least.

    With the workload that was simulated, layers have their parameters, and the run can be compared by layer,
    predicted from and simulated again.
    """
    device = device_named(simulation.cluster.device)
    writer = RunWriter.create(out, config=_config(simulation), environment=_environment(simulation))
    kind = "cuda" if device.kind == "gpu" else device.kind
    kept = kept_ranks(simulation, ranks)
    first_of_stage = set(_firsts(simulation))
    cells = [_layer_cells(played) for played in simulation.step.ranks]
    taken = 0
    for rank in kept:
        rows = _RankSteps.of(simulation, rank)
        writer.append("steps", schema.from_columns("steps", rows.columns(kind)))
        columns = _layer_columns(rows, cells[rows.played.stage])
        writer.append("layers", schema.from_columns("layers", columns))
        if rank in first_of_stage:
            traced = _traced_columns(rows)
            taken += len(traced["name"])
            if traced["name"] and taken <= MOST_TRACED:
                writer.append("kernels", schema.from_columns("kernels", traced))
        write_json(exchanges_path(writer.path, rank), asdict(_exchanges(rows)))
    sized = None if workload is None else rescaled(workload, simulation.batch)
    writer.network(_network(simulation) if sized is None else _described(sized))
    if sized is not None:
        writer.workload(sized.document)
    steps = len(simulation.step_times_s)
    writer.close(summary={"steps": {"train": steps}, "notes": list(_notes(simulation, kept))})
    return load(out)


def kept_ranks(simulation: Simulation, most: int) -> list[int]:
    """Equally many ranks of each stage: the first, some that others wait for, some spread over the rest."""
    firsts, each = _firsts(simulation), simulation.plan.data * simulation.plan.feature
    count = min(each, max(1, most // len(firsts)))
    slow, times = np.unique(simulation.slowest, return_counts=True)
    by_times = slow[np.argsort(-times, kind="stable")].tolist()
    kept: list[int] = []
    for first in firsts:
        # With jitter almost every rank is once the slowest, so they get half of the places.
        mine = [rank for rank in by_times if first <= rank < first + each][: count // 2]
        spread = np.linspace(first, first + each - 1, count).astype(int).tolist()
        chosen = dict.fromkeys((first, *mine, *spread, *range(first, first + each)))
        kept += list(chosen)[:count]
    return sorted(kept)


def _firsts(simulation: Simulation) -> list[int]:
    each = simulation.plan.data * simulation.plan.feature
    return [stage * each for stage in range(len(simulation.step.ranks))]


# -- what run.json says --------------------------------------------------------------------------------------


def _config(simulation: Simulation) -> dict[str, Any]:
    return {
        "command": "simulate",
        "network": simulation.network,
        "cluster": simulation.cluster.name,
        "nodes": simulation.nodes,
        "workers": simulation.plan.workers,
        "plan": simulation.plan.describe(),
        "batch": simulation.batch,
        "precision": simulation.precision,
        "samples": simulation.samples,
        "epochs": simulation.epochs,
    }


def _environment(simulation: Simulation) -> dict[str, Any]:
    device = device_named(simulation.cluster.device)
    kind = "cuda" if device.kind == "gpu" else device.kind
    return {
        "simulated": True,
        "cluster": simulation.cluster.title,
        "device": {"name": device.name, "type": kind},
    }


def _notes(simulation: Simulation, kept: Sequence[int]) -> Iterator[str]:
    workers = simulation.plan.workers
    if len(kept) < workers:
        yield (
            f"{len(kept)} of {workers:,} ranks are kept, and samples/s are theirs; "
            f"all together take {simulation.samples_per_s:,.0f} samples/s"
        )
    low, high = (f"{end * 1e3:,.4g}" for end in simulation.interval_s)
    yield f"nine in ten such simulations should be within {low} to {high} ms a step"
    yield from simulation.notes


def _network(simulation: Simulation) -> list[Layer]:
    names = dict.fromkeys(layer.layer for rank in simulation.step.ranks for layer in rank.layers())
    return [Layer(name=name, path=name, kind="") for name in names if name != LOSS_LAYER]


def _described(workload: Workload) -> list[Layer]:
    """Layers with what their operations tell: parameters, FLOPs, bytes, and what they mostly compute."""
    described = []
    for name in workload.layers:
        if name in (LOSS_LAYER, OTHER_LAYER):
            continue
        mine = [operation for operation in workload.operations if operation.layer == name]
        largest = max(mine, key=lambda operation: (operation.flops, operation.moved), default=None)
        parameters = sum(each.sizes["params"] for each in mine if each.phase is Phase.UPDATE)
        described.append(
            Layer(
                name=name,
                path=name,
                kind=largest.kind if largest else "",
                parameters=parameters,
                parameter_bytes=4 * parameters,
                flops=float(sum(each.flops for each in mine)),
                bytes=float(sum(each.moved for each in mine)),
            )
        )
    return described


# -- the steps of a rank -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _RankSteps:
    """One rank over all steps, an element for each step."""

    rank: int
    simulation: Simulation
    played: PlayedRank
    computing: Floats  # times as long as played
    exchanging: Floats  # likewise, of its exchanges and bubbles
    waiting_s: Floats  # for slower ranks, or for the servers
    staleness: Floats | None = None

    @classmethod
    def of(cls, simulation: Simulation, rank: int) -> _RankSteps:
        plan = simulation.plan
        played = simulation.step.ranks[rank // (plan.data * plan.feature)]
        if simulation.exchanges is not None:
            return cls._served(simulation, rank, played)
        computed_s = simulation.step_times_s - simulation.data_wait_s
        base_s = max(simulation.step.step_s, float(computed_s.mean()) - simulation.waiting_s)
        delay_s = np.maximum(0.0, computed_s - base_s)
        mine = simulation.slowest == rank
        longer_s = np.where(mine, delay_s, 0.0)
        pace = simulation.paces[rank] if simulation.paces else 1.0  # a faster device waits for the others
        return cls(
            rank=rank,
            simulation=simulation,
            played=played,
            computing=pace + longer_s / (played.compute_s or 1.0),
            exchanging=np.ones_like(delay_s),
            waiting_s=delay_s - longer_s + base_s - simulation.step.step_s + (1 - pace) * played.compute_s,
        )

    @classmethod
    def _served(cls, simulation: Simulation, rank: int, played: PlayedRank) -> _RankSteps:
        """A worker of parameter servers, or a rank of a group: as long as until its next parameters."""
        exchanges, plan = simulation.exchanges, simulation.plan
        assert exchanges is not None
        worker = rank * len(exchanges.workers) // plan.data
        mine = np.flatnonzero(exchanges.worker == worker)
        mine = mine[np.argsort(exchanges.step[mine])]
        wall_s = np.diff(exchanges.answered_s[mine], prepend=0.0)
        # How long each single gradient took to compute is not kept: the mean wait is that of every step.
        waiting_s = np.minimum(wall_s, exchanges.workers[worker].waiting_s / len(mine))
        factor = (wall_s - waiting_s) / simulation.step.step_s
        return cls(
            rank=rank,
            simulation=simulation,
            played=played,
            computing=factor,
            exchanging=factor,
            waiting_s=waiting_s,
            staleness=exchanges.staleness[mine].astype(np.float64),
        )

    @cached_property
    def accounts(self) -> dict[Account, Floats]:
        """Seconds of each step."""
        played = self.played.accounts()
        seconds = {
            account: played.get(account, 0.0) * (self.computing if account in COMPUTING else self.exchanging)
            for account in ACCOUNTS
        }
        seconds[Account.COMMUNICATION] = seconds[Account.COMMUNICATION] + self.waiting_s
        seconds[Account.DATA_WAIT] = np.full_like(self.computing, self.simulation.data_wait_s)
        return seconds

    @cached_property
    def wall_s(self) -> Floats:
        """The sum of the accounts."""
        whole: Floats = np.sum(list(self.accounts.values()), axis=0)
        return whole

    @cached_property
    def start_s(self) -> Floats:
        """Since the run began."""
        starts: Floats = np.cumsum(self.wall_s) - self.wall_s
        return starts

    @property
    def counts_samples(self) -> bool:
        """As in a measured run: of the ranks that share samples, the first of the last stage."""
        plan = self.simulation.plan
        return self.played.stage == plan.stages - 1 and self.rank % plan.feature == 0

    def columns(self, kind: str) -> dict[str, Any]:
        """Rows of `steps`."""
        simulation, steps = self.simulation, np.arange(len(self.wall_s))
        local = self.rank % simulation.cluster.devices_per_node
        node = self.rank // simulation.cluster.devices_per_node
        epoch = np.zeros(len(steps), dtype=np.int64)
        if simulation.samples:
            epoch = steps // -(-simulation.samples // simulation.global_batch)
        columns: dict[str, Any] = {
            "step": steps,
            "optimizer_step": steps + 1,
            "epoch": epoch,
            "rank": self.rank,
            "device": f"{kind}:{local} of node {node}" if simulation.nodes > 1 else f"{kind}:{local}",
            "start_s": self.start_s,
            "wall_s": self.wall_s,
            "samples": simulation.batch if self.counts_samples else None,
            "instrumented": steps < LAYER_STEPS,
        }
        columns |= {account.column: seconds for account, seconds in self.accounts.items()}
        if simulation.plan.stages > 1:
            bubbles = self.played.bubbles()
            columns |= {f"bubble_{cause}_s": each * self.exchanging for cause, each in bubbles.items()}
        else:
            columns[Account.IDLE.column] = None  # unknown is not zero
        if self.staleness is not None:
            columns["staleness"] = self.staleness
        return columns

    def spans(self, step: int) -> Iterator[Span]:
        """What the rank's compute stream does in a step, since the run began."""
        at = float(self.start_s[step]) + self.simulation.data_wait_s
        computing, exchanging = float(self.computing[step]), float(self.exchanging[step])
        for span in self.played.spans:
            seconds = span.seconds * (computing if span.account in COMPUTING else exchanging)
            yield Span(
                start_s=at, end_s=at + seconds, account=span.account, layer=span.layer, cause=span.cause
            )
            at += seconds


class _LayerCell:
    """A layer in a phase of a played step: what comes before its first span, and its spans added up."""

    def __init__(self, computed_s: float, exchanged_s: float) -> None:
        self.computed_s, self.exchanged_s = computed_s, exchanged_s  # before it
        self.seconds, self.calls = 0.0, 0


def _layer_cells(rank: PlayedRank) -> dict[tuple[str, str], _LayerCell]:
    cells: dict[tuple[str, str], _LayerCell] = {}
    computed_s = exchanged_s = 0.0
    for span in rank.spans:
        if span.account not in COMPUTING:
            exchanged_s += span.seconds
            continue
        if span.account is not Account.HOST:
            phase = Phase.FORWARD if span.account is Account.LOSS else Phase(span.account.value)
            name = (span.layer or OTHER_LAYER, phase.value)
            cell = cells.setdefault(name, _LayerCell(computed_s, exchanged_s))
            cell.seconds += span.seconds
            cell.calls += 1
        computed_s += span.seconds
    return cells


def _layer_columns(rows: _RankSteps, cells: Mapping[tuple[str, str], _LayerCell]) -> dict[str, Any]:
    """Rows of `layers`: the time of a layer in a phase of a step added up, from its first span on."""
    steps, count = min(LAYER_STEPS, len(rows.wall_s)), len(cells)
    computing, exchanging = (np.repeat(factor[:steps], count) for factor in (rows.computing, rows.exchanging))

    def every(name: str) -> Floats:
        return np.tile([getattr(cell, name) for cell in cells.values()], steps).astype(np.float64)

    begin_s = np.repeat(rows.start_s[:steps], count) + rows.simulation.data_wait_s
    return {
        "step": np.repeat(np.arange(steps), count),
        "layer": [layer for layer, _ in cells] * steps,
        "phase": [phase for _, phase in cells] * steps,
        "start_s": begin_s + every("computed_s") * computing + every("exchanged_s") * exchanging,
        "seconds": every("seconds") * computing,
        "calls": every("calls").astype(np.int64),
        "rank": rows.rank,
        "how": How.PREDICTED.value,
    }


def _traced_columns(rows: _RankSteps) -> dict[str, Any]:
    """Rows of `kernels` for one step: what the compute stream does, and beside it each exchange."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("layer", "phase", "kind", "name", "stream", "start_s", "seconds")
    }

    def add(*values: Any) -> None:
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)

    step = min(TRACED_STEP, len(rows.wall_s) - 1)
    for span in rows.spans(step):
        name = span.cause or span.layer or span.account.value
        layer = span.layer or OTHER_LAYER
        add(layer, span.account.value, "kernel", name, 0, span.start_s, span.seconds)
    begin = float(rows.start_s[step]) + rows.simulation.data_wait_s
    factor = float(rows.exchanging[step])
    kinds = list(dict.fromkeys(transfer.kind for transfer in rows.played.transfers))
    for each in rows.played.transfers:
        layer = each.layers[0] if each.layers else OTHER_LAYER
        place = (begin + each.start_s * factor, each.seconds * factor)
        add(layer, "communication", "copy", each.kind, 1 + kinds.index(each.kind), *place)
    return {**columns, "step": step, "rank": rows.rank}


# -- exchanges -----------------------------------------------------------------------------------------------

# Times that the bytes cross a rank's link in one direction, but for the rank's own part.
_CROSSING: Mapping[str, int] = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}


def wire_bytes(kind: str, size: float, ranks: int) -> float:
    """Bytes that cross the link of a rank in one direction."""
    return size * _CROSSING[kind] * (ranks - 1) / ranks if kind in _CROSSING else size


def exposed_s(rank: PlayedRank, transfers: Sequence[LinkTransfer]) -> float:
    """For how long the rank's compute stream waits while one of these exchanges is under way."""
    waits = [(span.start_s, span.end_s) for span in rank.spans if span.account is Account.COMMUNICATION]
    busy = list(union((each.start_s, each.end_s) for each in transfers))
    whole, place = 0.0, 0
    for begin, end in union(waits):
        while place < len(busy) and busy[place][1] <= begin:
            place += 1
        at = place
        while at < len(busy) and busy[at][0] < end:
            whole += min(end, busy[at][1]) - max(begin, busy[at][0])
            at += 1
    return whole


def _exchanges(rows: _RankSteps) -> RankExchanges:
    """What a rank exchanges in all steps; waits for slower ranks belong to what it exchanges last."""
    steps = len(rows.wall_s)
    factor, waited_s = float(rows.exchanging.sum()), float(rows.waiting_s.sum())
    by_kind: dict[str, list[LinkTransfer]] = {}
    for transfer in rows.played.transfers:
        by_kind.setdefault(transfer.kind, []).append(transfer)
    last = next((each.kind for each in reversed(rows.played.transfers) if each.kind != "send"), None)
    collectives = []
    for kind, transfers in by_kind.items():
        under_way = sum(end - begin for begin, end in union((each.start_s, each.end_s) for each in transfers))
        late_s = waited_s if kind == last and rows.staleness is None else 0.0
        collectives.append(
            Collective(
                kind=kind,
                calls=len(transfers) * steps,
                bytes=round(sum(each.bytes for each in transfers)) * steps,
                wire_bytes=sum(wire_bytes(kind, each.bytes, each.ranks) for each in transfers) * steps,
                seconds=under_way * factor + late_s,
                exposed_s=exposed_s(rows.played, transfers) * factor + late_s,
            )
        )
    collectives += _of_whole_networks(rows, waited_s)
    return RankExchanges(steps=steps, collectives=tuple(collectives), buckets=_buckets(rows, steps))


def _of_whole_networks(rows: _RankSteps, waited_s: float) -> Iterator[Collective]:
    """What is not part of the played step: servers, and the averages of `local`."""
    simulation, steps = rows.simulation, len(rows.wall_s)
    size = round(simulation.memory.parameters)
    if rows.staleness is not None:
        yield Collective(
            kind="parameter_server",
            calls=steps,
            bytes=size * steps,
            wire_bytes=float(size * steps),
            seconds=waited_s,
            exposed_s=waited_s,
        )
    elif simulation.plan.strategy == "local" and simulation.plan.data > 1:
        calls, ranks = steps // simulation.plan.average_every, simulation.plan.data
        yield Collective(
            kind="all_reduce",
            calls=calls,
            bytes=size * calls,
            wire_bytes=wire_bytes("all_reduce", size * calls, ranks),
            seconds=waited_s,
            exposed_s=waited_s,
        )


def _buckets(rows: _RankSteps, steps: int) -> tuple[Bucket, ...]:
    """Gradients that were averaged while the backward pass went on."""
    if rows.simulation.plan.shards > 1:
        return ()
    passes = [span.end_s for span in rows.played.spans if span.account is Account.BACKWARD and span.layer]
    computed_s = max(passes, default=0.0)
    carried = [each for each in rows.played.transfers if each.layers and each.kind == "all_reduce"]
    return tuple(
        Bucket(
            bucket=place,
            layers=each.layers[::-1],  # in the order of the network
            calls=steps,
            bytes=round(each.bytes) * steps,
            seconds=each.seconds * steps,
            exposed_s=max(0.0, each.end_s - max(each.start_s, computed_s)) * steps,
        )
        for place, each in enumerate(carried)
    )
