"""`laptime simulate`: a training on a cluster that is not here, on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from laptime.cli.options import wrong
from laptime.cli.outcome import Outcome, quiet_torch, verb, waiting
from laptime.cli.predict import named_target

if TYPE_CHECKING:
    from rich.text import Text

    from laptime.estimate.explain import Explanation
    from laptime.estimate.run_correction import Correction
    from laptime.hardware import Cluster
    from laptime.model import Workload
    from laptime.model.plan import Plan
    from laptime.simulate.training import Simulation, TrainingRun
    from laptime.training.config import Config
    from laptime.training.prediction_target import PredictionTarget
    from laptime.training.virtual_clock import Learned

_TARGET_HELP = (
    "A network of the zoo or a type of transformers (gpt2), module:callable, file.py:callable, a recorded "
    "run, a saved workload (.json), or a configuration of `laptime train`."
)
_CLUSTER_HELP = "A name of `laptime devices --clusters`, or a file; several: dgx-h100,dgx-a100."
_PARALLEL_HELP = (
    "How workers share the work: data, sharded, 'model,stages=4', 'hybrid,stages=4,feature=8', "
    "asynchronous …; several: 'data;model,stages=4'."
)
_WORKERS_HELP = "Devices that train; by default all of the cluster's."
_NODES_HELP = "Of the cluster; by default the catalog's number, or what the workers need."
_BATCH_HELP = "Samples of a replica in a step; by default 32, or a run's."
_JITTER_HELP = "Standard deviation of a rank's step from one to the next, relative: 0.02."
_CHECKPOINT_HELP = "Minutes between two checkpoints; by default 30."
_BYTES_HELP = "Of one stored sample, which each node reads from its storage."
_STORAGE_HELP = "Of a node, a name of `laptime devices --links`; by default the cluster's."
_OUT_HELP = "Also write the steps as a run directory."
_EXPLAIN_HELP = "Every constant with its source, and what the slowest rank does."
_SEARCH_HELP = "Look for the plans that train fastest and cheapest on the clusters."
_GLOBAL_HELP = "With --search: samples of an update; by default --batch for each worker."
_WITHIN_HELP = "With --search: also the cheapest plan that trains within it."
_LEARN_HELP = "Compute real gradients in the simulated order: the loss over time. Of a configuration."
_CONFIGURATIONS = (".toml", ".yaml", ".yml", ".xml")


@verb
def simulate(
    name: Annotated[str, Argument(metavar="TARGET", help=_TARGET_HELP)],
    cluster: Annotated[list[str], Option("--cluster", help=_CLUSTER_HELP)],
    nodes: Annotated[int | None, Option(min=1, help=_NODES_HELP)] = None,
    workers: Annotated[int | None, Option(min=1, help=_WORKERS_HELP)] = None,
    parallel: Annotated[str, Option(metavar="PLAN", help=_PARALLEL_HELP)] = "data",
    batch: Annotated[int | None, Option(min=1, help=_BATCH_HELP)] = None,
    inputs: Annotated[
        list[str] | None,
        Option("--input", metavar="SHAPE", help="One sample: 3x224x224, or int64:128 for token ids."),
    ] = None,
    precision: Annotated[str | None, Option(help="fp32 (the default), or autocast: bf16, fp16.")] = None,
    optimizer: Annotated[str | None, Option(help="Of the training; by default momentum.")] = None,
    steps: Annotated[int, Option(min=1, max=1_000_000, help="That are played.")] = 100,
    samples: Annotated[int | None, Option(min=1, help="In an epoch; alone: one epoch.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Of the training; with --samples.")] = None,
    jitter: Annotated[float, Option(help=_JITTER_HELP)] = 0.0,
    checkpoint_minutes: Annotated[float | None, Option(help=_CHECKPOINT_HELP)] = None,
    sample_bytes: Annotated[float | None, Option(help=_BYTES_HELP)] = None,
    storage: Annotated[str | None, Option(help=_STORAGE_HELP)] = None,
    seed: Annotated[int, Option(min=0, help="Of slow ranks, jitter and failures.")] = 0,
    search: Annotated[bool, Option("--search", help=_SEARCH_HELP)] = False,
    global_batch: Annotated[int | None, Option(min=1, help=_GLOBAL_HELP)] = None,
    within: Annotated[float | None, Option(metavar="HOURS", help=_WITHIN_HELP)] = None,
    learn: Annotated[bool, Option("--learn", help=_LEARN_HELP)] = False,
    out: Annotated[Path | None, Option("--out", help=_OUT_HELP)] = None,
    explain: Annotated[bool, Option("--explain", help=_EXPLAIN_HELP)] = False,
    every: Annotated[bool, Option("--all", help="Every stage, however many there are.")] = False,
) -> Outcome:
    """Simulate a training on a cluster: step time, memory, failures, hours and dollars of a plan.

    Nothing runs and nothing is allocated. Compute times are those of `laptime predict`; exchanges are played
    over the cluster's links.
    """
    from laptime.render.terminal.simulation import simulation_lines
    from laptime.simulate.training import CHECKPOINT_S, TrainingRun
    from laptime.views.simulation import SimulationView

    if epochs is not None and samples is None:
        wrong("--epochs", "how many samples has an epoch? give --samples too")
    _from_0(jitter=jitter, checkpoint_minutes=checkpoint_minutes, sample_bytes=sample_bytes)
    for option, given in {"--global-batch": global_batch, "--within": within}.items():
        if given is not None and not search:
            wrong(option, "it is about plans to be found; add --search")
    if learn:  # what is learned and what is played must be the same training
        said = {"--batch": batch, "--samples": samples, "--epochs": epochs, "--search": search or None}
        for option in (option for option, value in said.items() if value is not None):
            wrong(
                option,
                "the configuration says what is trained with --learn; change it there, or leave it out",
            )
    if search and parallel != "data":
        wrong("--parallel", "--search tries plans of all kinds; leave one of the two out")
    if storage is not None and not sample_bytes:
        wrong("--sample-bytes", "how much is read for one sample? 110000 for a JPEG of ImageNet")
    run = TrainingRun(
        steps=steps,
        samples=samples,
        epochs=None if samples is None else epochs or 1,
        jitter=jitter,
        checkpoint_every_s=60 * checkpoint_minutes if checkpoint_minutes else CHECKPOINT_S,
        seed=seed,
    )
    config = _config(name, learn)
    if learn and config is not None and config.train.accumulate > 1:
        wrong("--learn", "it plays a batch for each update; set train.accumulate = 1 in the configuration")
    with waiting("reading the network"):
        target = _target(name, config, inputs, precision, optimizer)
        asked = _AskedPlans(
            target=target,
            clusters=tuple(_listed(cluster)),
            plans=tuple(part.strip() for part in parallel.split(";")),
            workers=workers,
            nodes=nodes,
            batch=batch if batch is not None or config is None else config.train.batch,
            run=run,
            sample_bytes=sample_bytes or 0.0,
            storage=storage,
            correction=target.correction(),
        )
        if search:
            return _searched(asked, global_batch, within, every)
        played = list(asked.played())
        view = SimulationView(
            simulations=tuple(each.made for each in played),
            one_device=tuple(each.one_device() for each in played),
        )
        alone = played[0] if len(played) == 1 else None
        for option, wanted in {"--out": out, "--explain": explain, "--learn": learn}.items():
            if wanted and alone is None:
                wrong(option, "it is for one simulation; give one --cluster and one plan")
        if alone is not None:
            view = replace(view, diagnosis=alone.diagnosis())
        if alone is not None and explain:
            view = replace(view, explanation=alone.explanation())
        if alone is not None and out is not None:
            view = replace(view, run=alone.written(out))
    learned = None
    if alone is not None and config is not None and learn:
        learned = _learned(config, alone)
        view = replace(view, more={"learned": learned})
    return Outcome(
        document=view.document,
        lines=lambda width: (*simulation_lines(view, width, every=every), *_curve(learned)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedPlans:
    """What is simulated: each plan on each cluster."""

    target: PredictionTarget
    clusters: tuple[str, ...]
    plans: tuple[str, ...]
    workers: int | None
    nodes: int | None
    batch: int | None
    run: TrainingRun
    sample_bytes: float
    storage: str | None
    correction: Correction | None  # by the run that is the target

    def played(self) -> Iterator[_Played]:
        """In the order of the clusters, then of the plans."""
        from laptime.simulate.placement import placed, replica_batch

        for name in self.clusters:
            for text in self.plans:
                cluster, plan = placed(name, text, workers=self.workers, nodes=self.nodes)
                batch = replica_batch(plan, self.batch, self.target.batch)
                yield _Played.of(self, cluster, plan, batch)

    def fed(self, cluster: Cluster, plan: Plan, batch: int) -> TrainingRun:
        """The training with the time that a node takes to read its part of a batch."""
        from laptime import hardware

        if not self.sample_bytes:
            return self.run
        name = self.storage or cluster.storage
        if name is None:
            wrong("--storage", f"{cluster.name} does not say where its data lies; give it, such as nvme")
        nodes = -(-plan.workers // cluster.devices_per_node)
        each = batch * plan.data / nodes * self.sample_bytes
        return replace(self.run, data_s=each / hardware.storage(name).read_bandwidth)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """One simulation, and what it was made of."""

    asked: _AskedPlans
    workload: Workload
    made: Simulation

    @classmethod
    def of(cls, asked: _AskedPlans, cluster: Cluster, plan: Plan, batch: int) -> _Played:
        from laptime.simulate.training import simulate

        workload = asked.target.read(batch)
        run = asked.fed(cluster, plan, batch)
        made = simulate(workload, cluster, plan, batch=batch, run=run, correction=asked.correction)
        return cls(asked=asked, workload=workload, made=made)

    def again(self, plan: Plan, batch: int) -> Simulation:
        """Another plan on the same cluster. The workload is rescaled, not read anew."""
        from laptime.simulate.training import simulate

        run = self.asked.fed(self.made.cluster, plan, batch)
        correction = self.asked.correction
        return simulate(self.workload, self.made.cluster, plan, batch=batch, run=run, correction=correction)

    def one_device(self) -> float:
        """Samples a second of one device of the cluster with the batch of a replica."""
        from laptime.model.plan import Plan
        from laptime.simulate.training import simulate

        return simulate(
            self.workload,
            self.made.cluster,
            Plan(),
            batch=self.made.batch,
            correction=self.asked.correction,
        ).samples_per_s

    def diagnosis(self) -> Any:
        from laptime.simulate.remedies import diagnose

        return diagnose(self.made, self.again)

    def written(self, out: Path) -> Path:
        from laptime.simulate.run_directory import write_run

        return write_run(self.made, out, workload=self.workload).path

    def explanation(self) -> Explanation:
        """Constants of the links, the plan and the cluster, then those of the device's prediction."""
        from laptime.estimate import device_speed
        from laptime.estimate.explain import explain
        from laptime.estimate.predict import device_step
        from laptime.simulate.constants import constants_of

        device = device_speed.device(self.made.cluster.device)
        prediction = device_step(self.workload, device).prediction
        told = explain(self.workload, device, prediction)
        return replace(told, constants=(*constants_of(self.made), *told.constants))


def _from_0(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            wrong(f"--{name.replace('_', '-')}", f"{value:g} is not a number from 0 up")


def _listed(texts: Sequence[str]) -> Iterator[str]:
    """Names of clusters, several in one option; a file name may contain a comma."""
    if not any(text.strip(", ") for text in texts):
        wrong("--cluster", "give a name of `laptime devices --clusters`, or a file")
    for text in texts:
        parts = [text] if Path(text).is_file() else [part.strip() for part in text.split(",")]
        yield from filter(None, parts)


def _config(name: str, learn: bool) -> Config | None:
    """The configuration that TARGET is; None where it is a network, a run or a workload."""
    if not name.lower().endswith(_CONFIGURATIONS):
        if learn:
            wrong("--learn", "it trains as a configuration of `laptime train` says; give that as TARGET")
        return None
    quiet_torch()
    from laptime.training.config.reading import read_config

    return read_config(name).config


def _target(
    name: str,
    config: Config | None,
    inputs: Sequence[str] | None,
    precision: str | None,
    optimizer: str | None,
) -> PredictionTarget:
    if config is None:
        return named_target(name, inputs, precision, optimizer, False)
    return named_target(
        config.network.name,
        inputs,
        precision or config.train.precision,
        optimizer or config.optimizer.name,
        False,
    )


# -- --search ------------------------------------------------------------------------------------------------


def _searched(asked: _AskedPlans, global_batch: int | None, within: float | None, every: bool) -> Outcome:
    """Plans of all kinds on the clusters, with the same samples for each update."""
    from laptime import hardware
    from laptime.render.terminal.simulation import search_lines
    from laptime.simulate.search import search
    from laptime.views.plan_search import search_document

    if within is not None and asked.run.samples is None:
        wrong("--within", "it is about the whole training; give --samples too")
    clusters = [hardware.cluster(name, nodes=asked.nodes) for name in asked.clusters]
    if asked.workers is not None and asked.nodes is None:
        needed = {each.name: -(-asked.workers // each.devices_per_node) for each in clusters}
        clusters = [replace(each, nodes=max(each.nodes, needed[each.name])) for each in clusters]
    most = asked.workers or max(each.devices for each in clusters)
    batch = asked.batch or asked.target.batch
    found = search(
        asked.target.read(batch),
        clusters,
        global_batch=global_batch or batch * most,
        run=asked.run,
        workers=asked.workers,
        deadline_s=None if within is None else within * 3600,
        correction=asked.correction,
    )
    return Outcome(
        document=lambda: search_document(found), lines=lambda width: search_lines(found, width, every=every)
    )


# -- --learn -------------------------------------------------------------------------------------------------


def _learned(config: Config, played: _Played) -> Learned:
    """Real gradients along the simulated schedule; one update of each worker for each of the training."""
    from laptime.simulate import exchange_order
    from laptime.simulate.exchange_order import WorkerPace
    from laptime.training.virtual_clock import VirtualTraining

    made = played.made
    plan, run = made.plan, played.asked.run
    served = made.exchanges is not None
    grouped = plan.strategy == "mixed" or (plan.strategy == "local" and plan.groups > 1)
    groups = plan.groups if grouped else plan.data
    training = VirtualTraining(config, workers=groups, ranks_per_worker=plan.data // groups)
    updates = training.length.updates
    if served:
        longer = replace(played.asked, run=replace(run, steps=updates))
        exchanges = _Played.of(longer, made.cluster, plan, made.batch).made.exchanges
        assert exchanges is not None
    else:
        paces = [WorkerPace(step_s=made.step.step_s, spread=run.jitter)] * groups
        steady = replace(played.asked, run=replace(run, jitter=0.0))
        whole = _Played.of(steady, made.cluster, plan, made.batch).made.step_s
        rest_s = max(0.0, whole - made.step.step_s)  # slow ranks, averages, data; jitter is the paces'
        if plan.strategy == "local":
            every = plan.average_every
            exchanges = exchange_order.local(
                paces, exchange_s=rest_s * every, updates=updates, average_every=every, seed=run.seed
            )
        else:
            exchanges = exchange_order.synchronous(paces, exchange_s=rest_s, updates=updates, seed=run.seed)
    with waiting(f"computing {updates * groups:,} gradients"):
        return training.learn(exchanges)


def _curve(learned: Learned | None) -> Iterator[Text | str]:
    if learned is None:
        return
    from laptime.views.format import long_duration

    yield ""
    yield f"Learned in {long_duration(learned.seconds)} of virtual time, {learned.updates:,} updates:"
    for point in learned.curve:
        when = long_duration(point.seconds)
        yield (
            f"  {when:>10}  loss {point.loss:.4g}, validation {point.validation_loss:.4g}, "
            f"top-1 {point.top1:.1%}"
        )
    if learned.diverged:
        yield "  a loss was no number: it diverged"
    if learned.reached_s is not None:
        yield f"  the target was reached after {long_duration(learned.reached_s)}"
