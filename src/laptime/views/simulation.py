"""Simulated plans on clusters, and their tables. `SimulationView.document` is `laptime simulate --json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laptime.estimate.explain import Explanation
from laptime.files.text import one_line
from laptime.files.write import plain
from laptime.model import ACCOUNTS, Account
from laptime.model.layers import union
from laptime.model.plan import Plan
from laptime.simulate.remedies import Diagnosis, Loss, PlanRemedy, largest_loss, mean_accounts
from laptime.simulate.run_directory import COMPUTING, exposed_s, wire_bytes
from laptime.simulate.step import LinkTransfer, PlayedRank
from laptime.simulate.training import Simulation
from laptime.views import format
from laptime.views.format import cells, duration, figures, percent, step_unit, training_unit
from laptime.views.table import Cells, Column, Table, share_cell, table_of

MOST_ROWS = 400
MOST_STAGES = 16  # of a terminal
_GIB = 2.0**30
_FITS = {True: "yes", False: "no", None: "?"}
_LOSSES = {
    "memory": "memory",
    "communication": "communication",
    "bubbles": "pipeline bubbles",
    "slow ranks": "slow ranks",
    "slower devices": "slower devices",
    "data": "waiting for data",
    "none": "computing",
}
# Accounts that a narrow terminal has no room for, the highest first; what is lost stays longest.
_LEFT_OUT = {
    Account.HOST: 7,
    Account.LOSS: 6,
    Account.UPDATE: 5,
    Account.DATA_WAIT: 4,
    Account.IDLE: 2,
    Account.COMMUNICATION: 1,
}
_CARRIES = {
    "all_gather": "parameters",
    "reduce_scatter": "gradients",
    "all_to_all": "tokens of experts",
    "send": "activations, and their gradients",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTraffic:
    """One kind of exchange of a rank in a step, the mean over the stages of a pipeline."""

    kind: str
    carries: str
    ranks: int  # that exchange together
    calls: float
    bytes: float  # of the tensors given
    wire_bytes: float  # that cross a rank's link in one direction
    seconds: float  # at least one is under way
    exposed_s: float  # of these, the rank waits


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSum:
    """What a rank's compute stream does under one name in a step."""

    name: str  # an account, or the cause of a bubble
    spans: int
    seconds: float
    share: float
    longest_s: float
    longest: str  # its layer; empty where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationView:
    """Simulations in their order, each with the samples a second of one device of its cluster."""

    simulations: tuple[Simulation, ...]
    one_device: tuple[float, ...]  # samples a second, memory or not
    diagnosis: Diagnosis | None = None  # of one alone
    explanation: Explanation | None = None  # likewise
    run: Path | None = None  # where its steps were written
    more: dict[str, Any] = field(default_factory=dict, hash=False)  # what else was asked for, as JSON has it

    @property
    def first(self) -> Simulation:
        """The one that details are shown of."""
        return self.simulations[0]

    def efficiency(self, place: int) -> float:
        """Samples a second over those of as many devices that need not wait for each other."""
        made = self.simulations[place]
        return made.samples_per_s / (self.one_device[place] * made.plan.workers)

    def best(self) -> tuple[int, int | None]:
        """Places of the fastest that fits, and of the cheapest; None without prices."""
        places = range(len(self.simulations))
        fitting = [place for place in places if self.simulations[place].fits is not False] or list(places)
        fastest = max(fitting, key=lambda place: self.simulations[place].samples_per_s)
        priced = {place: price for place in fitting if (price := per_sample(self.simulations[place]))}
        return fastest, min(priced, key=lambda place: priced[place]) if priced else None

    def document(self) -> dict[str, Any]:
        """As `laptime simulate --json` writes it."""
        made: dict[str, Any] = {
            "simulations": [
                simulation_document(each) | {"efficiency": self.efficiency(place)}
                for place, each in enumerate(self.simulations)
            ]
        }
        if self.diagnosis is not None:
            made["diagnosis"] = plain(self.diagnosis)
        if self.explanation is not None:
            made["explanation"] = {
                "constants": self.explanation.constants,
                "kinds": self.explanation.kinds,
                "spans": span_sums(slowest_rank(self.first)),
            }
        if self.run is not None:
            made["run"] = str(self.run)
        return made | self.more


def per_sample(made: Simulation) -> float | None:
    """Dollars."""
    each = made.dollars_per_hour
    return None if each is None else each / 3600 / made.samples_per_s


def plan_text(plan: Plan) -> str:
    """The plan without the degrees that follow from the number of workers."""
    implied = {f"data={plan.data}", *([f"shards={plan.data}"] if plan.strategy == "sharded" else ())}
    return ",".join(word for word in plan.describe().split(",") if word not in implied)


def pace(per_s: float) -> str:
    """Samples a second: large networks have few."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def simulation_document(made: Simulation) -> dict[str, Any]:
    """A simulation as JSON has it, with what follows from it."""
    loss = largest_loss(made)
    document: dict[str, Any] = {
        "network": made.network,
        "cluster": made.cluster.name,
        "device": made.cluster.device,
        "nodes": made.nodes,
        "workers": made.plan.workers,
        "parallel": made.plan.describe(),
        "plan": made.plan.document(),
        "batch": made.batch,
        "global_batch": made.global_batch,
        "precision": made.precision,
        "step_s": made.step_s,
        "interval_s": made.interval_s,
        "samples_per_s": made.samples_per_s,
        "utilization": made.utilization,
        "largest_loss": plain(loss),
        "accounts": {account.value: seconds for account, seconds in mean_accounts(made).items()},
        "stages": [
            {"stage": rank.stage, "accounts": {key.value: value for key, value in seconds.items()}}
            | {"bubbles": rank.bubbles()}
            for rank, seconds in _by_stage(made)
        ],
        "exchanges": plain(exchanges(made)),
        "waiting_s": made.waiting_s,
        "data_wait_s": made.data_wait_s,
        "memory": plain(made.memory) | {"tensors": made.memory.tensors, "reserved": made.memory.reserved},
        "device_memory_bytes": made.device_memory_bytes,
        "fits": made.fits,
        "steps": made.steps,
        "training_s": made.training_s,
        "dollars_per_hour": made.dollars_per_hour,
        "dollars": made.dollars,
        "faults": plain(made.faults),
        "step_times_s": made.step_times_s.tolist(),
        "notes": made.notes,
    }
    if made.exchanges is not None:
        document["staleness"] = {
            "mean": made.exchanges.mean_staleness,
            "p90": made.exchanges.staleness_percentile(90),
            "largest": int(made.exchanges.staleness.max()),
        }
    return document


# -- what the played step tells ------------------------------------------------------------------------------


def slowest_rank(made: Simulation) -> PlayedRank:
    """Of the stages, the one that computes longest."""
    return max(made.step.ranks, key=lambda rank: rank.compute_s)


def _by_stage(made: Simulation) -> Iterator[tuple[PlayedRank, dict[Account, float]]]:
    """Each stage with its seconds by account in the mean step: waits for others are communication."""
    waited_s = max(0.0, made.step_s - made.data_wait_s - made.step.step_s)
    for rank in made.step.ranks:
        seconds = {Account.DATA_WAIT: made.data_wait_s} | rank.accounts()
        seconds[Account.COMMUNICATION] = seconds.get(Account.COMMUNICATION, 0.0) + waited_s
        yield rank, {account: seconds[account] for account in ACCOUNTS if seconds.get(account)}


def exchanges(made: Simulation) -> tuple[ExchangeTraffic, ...]:
    """What a rank exchanges in a step that nobody delays, by kind and what it carries; most bytes first."""
    alike: dict[tuple[str, str, int], list[tuple[PlayedRank, list[LinkTransfer]]]] = {}
    for rank in made.step.ranks:
        mine: dict[tuple[str, str, int], list[LinkTransfer]] = {}
        for each in rank.transfers:
            carries = _CARRIES.get(each.kind) or ("gradients" if each.layers else "features")
            mine.setdefault((each.kind, carries, each.ranks), []).append(each)
        for key, transfers in mine.items():
            alike.setdefault(key, []).append((rank, transfers))
    stages = len(made.step.ranks)
    rows = []
    for (kind, carries, ranks), parts in alike.items():
        every = [each for _, transfers in parts for each in transfers]
        under_way = [union((each.start_s, each.end_s) for each in transfers) for _, transfers in parts]
        rows.append(
            ExchangeTraffic(
                kind=kind,
                carries=carries,
                ranks=ranks,
                calls=len(every) / stages,
                bytes=sum(each.bytes for each in every) / stages,
                wire_bytes=sum(wire_bytes(kind, each.bytes, ranks) for each in every) / stages,
                seconds=sum(end - begin for spans in under_way for begin, end in spans) / stages,
                exposed_s=sum(exposed_s(rank, transfers) for rank, transfers in parts) / stages,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def span_sums(rank: PlayedRank) -> tuple[SpanSum, ...]:
    """The spans of a rank by account and cause, the most seconds first."""
    alike: dict[str, list[Any]] = {}
    for span in rank.spans:
        cause = f" ({span.cause})" if span.cause else ""
        alike.setdefault(f"{span.account.value}{cause}", []).append(span)
    whole = sum(span.seconds for span in rank.spans)
    sums = []
    for name, spans in alike.items():
        longest = max(spans, key=lambda span: span.seconds)
        seconds = sum(span.seconds for span in spans)
        sums.append(
            SpanSum(
                name=name,
                spans=len(spans),
                seconds=seconds,
                share=seconds / whole,
                longest_s=longest.seconds,
                longest=longest.layer,
            )
        )
    return tuple(sorted(sums, key=lambda each: -each.seconds))


# -- sentences -----------------------------------------------------------------------------------------------


def loss_sentence(made: Simulation, loss: Loss, diagnosis: Diagnosis | None = None) -> str:
    """The largest loss, and what was simulated to help."""
    opening = _opening(made, loss)
    if diagnosis is None or loss.kind in ("none", "slow ranks", "data"):
        return opening
    if not diagnosis.remedies:
        beside = f"{format.plural(diagnosis.tried, 'neighbouring plan')} simulated beside it"
        none = "fits" if loss.kind == "memory" else "is clearly faster"
        return f"{opening}. Of {beside}, none {none}." if diagnosis.tried else f"{opening}."
    told = "; or ".join(_remedy(remedy, loss) for remedy in diagnosis.remedies)
    return f"{opening}. Try {told}."


def _opening(made: Simulation, loss: Loss) -> str:
    share, took = percent(loss.share, 0), duration(loss.seconds)
    if loss.kind == "memory":
        needs, has = made.memory.reserved / _GIB, (made.device_memory_bytes or 0.0) / _GIB
        return f"It does not fit: a rank needs {needs:,.1f} GiB, {made.cluster.device} has {has:,.0f}"
    if loss.kind == "communication":
        return f"Communication takes {share} of the step ({took})"
    if loss.kind == "bubbles":
        return f"Stages wait for each other {share} of the step ({took})"
    if loss.kind == "slow ranks":
        why = "leave slow nodes out" if made.cluster.slow_share else "by chance, another one in each step"
        return f"Ranks wait {share} of the step ({took}) for the slowest one: {why}"
    if loss.kind == "slower devices":
        why = "asynchronous waits for none"
        return f"Faster devices wait {share} of the step ({took}) for the slower ones: {why}"
    if loss.kind == "data":
        return f"Ranks wait {share} of the step ({took}) for their data: give faster storage"
    return f"Computing takes {percent(_computing(made), 0)} of the step: no loss is larger than {share}"


def _computing(made: Simulation) -> float:
    seconds = mean_accounts(made)
    return sum(seconds.get(account, 0.0) for account in COMPUTING) / made.step_s


def _remedy(remedy: PlanRemedy, loss: Loss) -> str:
    faster = f"{duration(remedy.step_s)} a step, {pace(remedy.samples_per_s)} samples/s"
    if loss.kind == "memory":
        return f"{remedy.change}, which fits ({faster})"
    return f"{remedy.change}: {percent(remedy.saves, 0)} less time a sample ({faster})"


# -- tables --------------------------------------------------------------------------------------------------


def simulations_table(view: SimulationView) -> Table:
    """A row for each simulation; a column only for what differs or is known."""
    made = view.simulations[:MOST_ROWS]
    unit = step_unit([each.step_s for each in made])
    columns: list[Cells] = []

    def add(title: str, cells: Iterable[str], **how: Any) -> None:
        columns.append((Column(title=title, **how), list(cells)))

    add("plan", (one_line(plan_text(each.plan)) for each in made), words=True)
    if len({each.cluster.name for each in made}) > 1:
        add("cluster", (one_line(each.cluster.name) for each in made), words=True)
    if len({each.plan.workers for each in made}) > 1:
        add("workers", (f"{each.plan.workers:,}" for each in made))
    if len({each.batch for each in made}) > 1:
        add("batch", (str(each.batch) for each in made), priority=7)
    add(f"step {unit.name}", (figures(each.step_s / unit.seconds) for each in made))
    reach = (percent(each.interval, 0) for each in made)
    add("±", reach, priority=9, meaning="± is what nine in ten should stay within")
    add("samples/s", [pace(each.samples_per_s) for each in made])
    add("MFU", (percent(each.utilization, 0) for each in made), priority=3)
    add(
        "efficiency",
        (percent(view.efficiency(place), 0) for place in range(len(made))),
        priority=4,
        meaning="efficiency: samples/s over those of as many single devices, memory or not",
    )
    add("needs GiB", (f"{each.memory.reserved / _GIB:,.1f}" for each in made), priority=5)
    add("fits", (_FITS[each.fits] for each in made))
    whole = [each.training_s for each in made]
    if known := [value for value in whole if value is not None]:
        long = training_unit(known)
        add(f"training, {long.name}", cells(whole, 2, over=long.seconds), priority=1)
    for title, values, priority in (
        ("$", [each.dollars for each in made], 2),
        ("$/hour", [each.dollars_per_hour for each in made], 8),
    ):
        if any(value is not None for value in values):
            add(title, cells(values, 2), priority=priority)
    losses = [largest_loss(each) for each in made]
    texts = (f"{_LOSSES[each.kind]} {percent(each.share, 0)}" for each in losses)
    add("largest loss", texts, words=True, priority=6, optional=True)
    bold = [view.best()[0]] if len(made) > 1 else []
    return table_of("simulations", columns, bold=bold)


def stages_table(made: Simulation, *, every: bool = True) -> Table:
    """Seconds of each stage by account in the mean step, and its memory where that is the most."""
    rows = list(_by_stage(made))
    shown = rows
    if not every and len(rows) > MOST_STAGES:
        shown = [rows[place * (len(rows) - 1) // (MOST_STAGES - 1)] for place in range(MOST_STAGES)]
    unit = step_unit([made.step_s])
    present = [account for account in ACCOUNTS if any(account in seconds for _, seconds in shown)]
    several = len(rows) > 1
    names = [str(rank.stage) if several else "every rank" for rank, _ in shown]
    columns: list[Cells] = [(Column(title="stage" if several else "", words=True), names)]
    for account in present:
        values = [seconds.get(account, 0.0) for _, seconds in shown]
        texts = [figures(value / unit.seconds) for value in values]
        priority = _LEFT_OUT.get(account, 3)
        columns.append((Column(title=account.value, word=account.value, priority=priority), texts))
    computing = [
        sum(seconds.get(account, 0.0) for account in COMPUTING) / made.step_s for _, seconds in shown
    ]
    shares = [share_cell(percent(share), share, "forward") for share in computing]
    columns.append((Column(title="computing", longest_bar=12), shares))
    notes = [f"{len(rows) - len(shown)} more stages; --all shows them"] if len(shown) < len(rows) else []
    of = "each stage" if several else "a rank"
    title = f"Where the mean step of {of} goes, in {unit.name}"
    return table_of("stages", columns, title=title, notes=notes)


def exchanges_table(made: Simulation) -> Table:
    """What a rank exchanges in a step."""
    rows = exchanges(made)
    unit = step_unit([row.seconds for row in rows])
    columns: list[Cells] = [
        (Column(title="exchange", words=True), [row.kind for row in rows]),
        (Column(title="carries", words=True, priority=1), [row.carries for row in rows]),
        (Column(title="ranks", priority=4), [f"{row.ranks:,}" for row in rows]),
        (Column(title="calls", priority=3), [figures(row.calls, 3) for row in rows]),
        (Column(title="bytes"), [format.memory(row.bytes) for row in rows]),
        (Column(title=unit.name), [figures(row.seconds / unit.seconds) for row in rows]),
        (
            Column(title=f"exposed {unit.name}", meaning="exposed: the rank waits for it"),
            [figures(row.exposed_s / unit.seconds) for row in rows],
        ),
        (
            Column(title="GB/s", priority=2, meaning="GB/s: over a rank's link while under way"),
            [figures(row.wire_bytes / row.seconds / 1e9, 3) if row.seconds else "-" for row in rows],
        ),
    ]
    where = ", the mean of all stages" if len(made.step.ranks) > 1 else ""
    return table_of("exchanges", columns, title=f"What a rank exchanges in a step{where}")


def spans_table(sums: Sequence[SpanSum]) -> Table:
    """What the slowest rank does, by account."""
    unit = step_unit([each.seconds for each in sums])
    columns: list[Cells] = [
        (Column(title="account", words=True), [each.name for each in sums]),
        (Column(title="spans"), [f"{each.spans:,}" for each in sums]),
        (Column(title=unit.name), [figures(each.seconds / unit.seconds) for each in sums]),
        (Column(title="share"), [share_cell(percent(each.share), each.share) for each in sums]),
        (Column(title="longest ms"), [format.milliseconds(each.longest_s) for each in sums]),
        (Column(title="which is", words=True), [one_line(each.longest) for each in sums]),
    ]
    return table_of("spans", columns, title="The slowest rank, before it waits for others")
