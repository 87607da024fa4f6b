"""The public API: record a training loop, load a run, predict a step, simulate a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.runs import Run, load
from laptime.runs.directory import default_out

if TYPE_CHECKING:
    from laptime.estimate.largest_batch import Largest
    from laptime.hardware import Cluster, Device
    from laptime.model import Workload
    from laptime.model.plan import Plan
    from laptime.model.prediction import Prediction
    from laptime.recorder.arguments import Networks, Optimizers
    from laptime.recorder.backends import Clock
    from laptime.recorder.layer_division import Granularity
    from laptime.recorder.recorder import Recorder
    from laptime.simulate.training import Simulation

__all__ = ["Run", "largest_batch", "load", "predict", "record", "simulate", "workload"]


class _Viewer:
    """Renders a run; imports the renderers on first use."""

    def report(self, run: Run, out: Path | str | None) -> Path:
        from laptime.render.html.run_page import write_report

        return write_report(run, out)

    def html(self, run: Run) -> str:
        from laptime.render.html.run_page import notebook

        return notebook(run)


Run.viewer = _Viewer()


def record(
    network: Networks,
    optimizer: Optimizers = None,
    *,
    out: str | Path | None = None,
    every_step: bool = False,
    budget: float = 0.02,
    layers: Granularity = "layer",
    kernels: Iterable[int] = (),
    config: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Recorder:
    """Record a training loop: `with laptime.record(model, optimizer) as recording: …`.

    network     a module, or {name: module} when a step uses several
    optimizer   an optimizer or a list; without it, updates are host time
    out         the run directory; a new one under `runs/` if not given; the ranks of torch.distributed share
                rank 0's
    every_step  layer times on every step; otherwise on as many as keep the run within `budget`
    budget      the share of step time that layer marks may cost
    layers      "layer", "module", a depth, or {layer name: module path or paths}
    kernels     step numbers to trace with torch.profiler
    """
    from laptime.bridges.ranks import join_first
    from laptime.recorder.recorder import Recorder

    place, rank = join_first(Path(out) if out is not None else None, default_out())
    return Recorder(
        network,
        optimizer,
        out=place,
        rank=rank,
        every_step=every_step,
        budget=budget,
        layers=layers,
        kernels=kernels,
        config=config,
        clock=clock,
    )


def workload(
    network: Any,
    *,
    input: Sequence[int] | None = None,
    example: Any = None,
    batch: int | None = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: Any = None,
    loss: Any = None,
    layers: Granularity | None = None,
    name: str = "",
) -> Workload:
    """The operations and memory of one step of a network, traced without running or allocating it.

    network    a module, on any device, also `meta`; or the name of a network, as `predict` takes it
    input      the shape of one sample without the batch, with batch= (1 if left out); or
    example    a batch: tensors, or a tuple or dict of them. Networks of the zoo and of `transformers` need
               neither: their input is known, and batch= is 32 if left out
    precision  "fp32" (the default; TF32 in convolutions, as torch has it), or autocast in "bf16" or "fp16"
    mode       "training" (the default) or "inference"
    optimizer  its name, or one of torch's own; by default "momentum"
    loss       a function of (network, batch), the batch a tuple or a dict; by default cross-entropy on the
               first output, or the loss that the network gives
    """
    from laptime.training.prediction_target import NetworkOptions, prediction_target

    options = NetworkOptions(
        input=input,
        example=example,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        loss=loss,
        layers=layers,
        name=name,
    )
    target = prediction_target(network, options)
    return target.read(_size(batch, target.batch, example))


def predict(
    subject: Any,
    *,
    device: str | Device = "h200",
    batch: int | None = None,
    input: Sequence[int] | None = None,
    example: Any = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: Any = None,
    loss: Any = None,
    layers: Granularity | None = None,
    name: str = "",
    gpus: int = 1,
    samples: int | None = None,
    epochs: int | None = None,
    price_per_hour: float | None = None,
) -> Prediction:
    """How long a step takes on a device that need not be here, layer by layer, and what memory it needs.

    subject  a network; the name of one of the zoo, of a type of `transformers` such as "gpt2", of
             "module:callable" or "file.py:callable"; a `Workload` or the path of a saved one; a `Run` or
             its path: its network, corrected by what it took
    device   a name of `laptime devices`, a file of your own, or "cpu" after `laptime calibrate`
    batch    samples of one step on one GPU; a run's and a workload's can be changed too
    input, example, precision, mode, optimizer, loss, layers, name
             of a network, as `workload` takes them; of a run, mode= alone can be changed
    gpus     of one node, that train together, each with its own batch
    samples, epochs, price_per_hour  for the whole training, its hours and its price
    """
    from laptime.estimate import device_speed
    from laptime.training.prediction_target import NetworkOptions, prediction_target

    options = NetworkOptions(
        input=input,
        example=example,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        loss=loss,
        layers=layers,
        name=name,
    )
    target = prediction_target(subject, options)
    return target.predict(
        _size(batch, target.batch, example),
        [device_speed.device(device)],
        samples=samples,
        epochs=epochs,
        price_per_hour=price_per_hour,
        gpus=gpus,
    )[0]


def simulate(
    subject: Any,
    *,
    cluster: str | Path | Cluster,
    parallel: str | Plan = "data",
    workers: int | None = None,
    nodes: int | None = None,
    batch: int | None = None,
    input: Sequence[int] | None = None,
    example: Any = None,
    precision: str | None = None,
    optimizer: Any = None,
    loss: Any = None,
    layers: Granularity | None = None,
    name: str = "",
    steps: int = 100,
    samples: int | None = None,
    epochs: int | None = None,
    jitter: float = 0.0,
    checkpoint_every_s: float | None = None,
    out: str | Path | None = None,
    seed: int = 0,
) -> Simulation:
    """A training on a cluster that need not be here, played on a virtual clock.

    subject   as for `predict`; the layer times of a run correct those that are predicted
    cluster   a name of `laptime devices --clusters`, a file of your own, or a `Cluster`
    parallel  a `Plan`, or its text: "data", "sharded", "model,stages=4", "hybrid,stages=4,feature=8",
              "asynchronous", "mixed,groups=4", "local"; what degrees leave of the workers is data parallel
    workers   devices that train; by default all of the cluster's
    nodes     of the cluster; by default the catalog's number, or more if the workers need more
    batch     samples of a replica in a step
    input, example, precision, optimizer, loss, layers, name  of a network, as `workload` takes them
    steps     that are played, each with `jitter`, the relative standard deviation of a rank's step
    samples, epochs, checkpoint_every_s  for the whole training: its hours, its price and its failures
    out       also write the steps as a run, which `load` reads and `laptime show` shows as simulated
    """
    from laptime.simulate.placement import placed, replica_batch
    from laptime.simulate.run_directory import write_run
    from laptime.simulate.training import CHECKPOINT_S, TrainingRun
    from laptime.simulate.training import simulate as play
    from laptime.training.prediction_target import NetworkOptions, prediction_target

    options = NetworkOptions(
        input=input,
        example=example,
        precision=precision,
        optimizer=optimizer,
        loss=loss,
        layers=layers,
        name=name,
    )
    entry, plan = placed(cluster, parallel, workers=workers, nodes=nodes)
    target = prediction_target(subject, options)
    size = replica_batch(plan, batch, target.batch)
    work = target.read(target.batch if example is not None else size)
    every_s = CHECKPOINT_S if checkpoint_every_s is None else checkpoint_every_s
    run = TrainingRun(
        steps=steps,
        samples=samples,
        epochs=epochs if samples is None else epochs or 1,
        jitter=jitter,
        checkpoint_every_s=every_s,
        seed=seed,
    )
    made = play(work, entry, plan, batch=size, run=run, correction=target.correction())
    if out is not None:
        write_run(made, Path(out), workload=work)
    return made


def _size(asked: int | None, own: int, example: Any) -> int:
    """The requested batch, else the target's own; an example fixes it."""
    from laptime.errors import WorkloadError

    if asked is not None and example is not None:
        raise WorkloadError("the example is a batch already; leave out batch=, or give input= instead")
    return own if asked is None else asked


def largest_batch(
    network: Any,
    *,
    input: Sequence[int] | None = None,
    device: str | Device = "h200",
    gpus: int = 1,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: Any = None,
    loss: Any = None,
    layers: Granularity | None = None,
) -> Largest:
    """The most samples of a step that fit a device, with the prediction of that step.

    Options as for `predict`. `batch` is 0 if not even one fits, None if the memory is unknown.
    """
    from laptime.estimate import device_speed
    from laptime.estimate.largest_batch import largest
    from laptime.training.prediction_target import NetworkOptions, prediction_target

    options = NetworkOptions(
        input=input, precision=precision, mode=mode, optimizer=optimizer, loss=loss, layers=layers
    )
    target = prediction_target(network, options)
    return largest(partial(target.predict, gpus=gpus), [device_speed.device(device)])[0]


class ZooWorkloads(Mapping[str, "Callable[[int, str], Workload]"]):
    """By name of a network of the zoo, a function that reads its training step at a batch and precision.

    torch is imported when the first is asked for.
    """

    def __getitem__(self, name: str) -> Callable[[int, str], Workload]:
        """The reader of a network."""
        if name not in _zoo_names():
            raise KeyError(name)
        return lambda batch, precision: workload(name, batch=batch, precision=precision)

    def __iter__(self) -> Iterator[str]:
        return iter(_zoo_names())

    def __len__(self) -> int:
        return len(_zoo_names())


def zoo_workloads() -> ZooWorkloads | None:
    """None where torch is absent; it is looked for, not imported."""
    return ZooWorkloads() if find_spec("torch") is not None else None


@cache
def _zoo_names() -> tuple[str, ...]:
    from laptime.training.networks.registry import entries

    return tuple(entries())
