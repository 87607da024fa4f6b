"""The public sentence: record a loop, load a run, predict a step elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.measure.places import default_out
from laptime.store import Run, load

if TYPE_CHECKING:
    from laptime.hardware import Device
    from laptime.measure.arguments import Networks, Optimizers
    from laptime.measure.clocks import Clock
    from laptime.measure.division import Granularity
    from laptime.measure.recorder import Recorder
    from laptime.predict.largest import Largest
    from laptime.predict.prediction import Prediction
    from laptime.workload import Workload

__all__ = ["Run", "default_out", "load", "predict", "record", "workload"]


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
    out         the run directory; a new one under `runs/` if not given
    every_step  layer times on every step; otherwise on a random share that keeps within `budget`
    budget      the share of step time that layer marks may cost
    layers      "layer", "module", a depth, or {layer name: module path or paths}
    kernels     step numbers to trace with torch.profiler
    """
    from laptime.measure.recorder import Recorder

    return Recorder(
        network,
        optimizer,
        out=out if out is not None else default_out(),
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
    batch: int = 1,
    precision: str = "fp32",
    mode: str = "training",
    optimizer: str = "momentum",
    loss: Any = None,
    layers: Granularity = "layer",
    name: str = "",
) -> Workload:
    """What one step of a network asks of any machine, read off it without running or allocating it.

    network    a module, on any device, also `meta`
    input      the shape of one sample without the batch; or
    example    a batch: tensors, or a tuple or dict of them
    precision  "fp32" (torch's defaults: TF32 in convolutions), or autocast in "bf16" or "fp16"
    mode       "training" or "inference"
    loss       a function of (network, batch); by default cross-entropy on the first output
    """
    import torch

    from laptime.errors import WorkloadError
    from laptime.measure.division import Division
    from laptime.workload.trace import trace

    if (input is None) == (example is None):
        raise WorkloadError("give the shape of one sample as input=(3, 224, 224), or a batch as example=")
    if input is not None:
        if not all(isinstance(size, int) and size > 0 for size in (batch, *input)):
            raise WorkloadError(
                f"batch {batch} of input {tuple(input)} holds nothing; give whole numbers above 0"
            )
        example = torch.empty((batch, *input), device="meta")
    given = example if isinstance(example, tuple | list | dict) else (example,)
    division = Division(network, granularity=layers, network=0, prefix="", first=0)
    options = {} if loss is None else {"loss": loss}
    return trace(
        network,
        given,
        division=division,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        name=name,
        **options,
    )


def predict(
    subject: Any,
    *,
    device: str | Device = "h200",
    samples: int | None = None,
    epochs: int | None = None,
    price_per_hour: float | None = None,
    gpus: int = 1,
    **options: Any,
) -> Prediction:
    """How long a step takes on a device that need not be here, layer by layer, and what memory it needs.

    subject  a network, with the options of `workload`; a `Workload`, or the path of a saved one; a `Run` or
             its path: its network, corrected by what it took, with batch= and mode= as options
    device   a name of `laptime devices`, a file of your own, or "cpu" after `laptime calibrate`
    samples, epochs, price_per_hour  for the whole training, its hours and its price
    gpus     of one node, that train together, each with its own batch
    """
    from laptime.errors import PredictionError
    from laptime.predict import devices
    from laptime.predict.predicting import predict as predict_workload
    from laptime.workload import Workload

    training: dict[str, Any] = {
        "samples": samples,
        "epochs": epochs,
        "price_per_hour": price_per_hour,
        "gpus": gpus,
    }
    if isinstance(subject, str | Path):
        path = Path(subject)
        is_run = path.is_dir() or path.name == "run.json"
        subject = load(path) if is_run else Workload.load(path)
    if isinstance(subject, Run):
        from laptime.predict.refinement import predict_run

        unknown = set(options) - {"batch", "mode"}
        if unknown:
            raise PredictionError(
                f"a run has its {', '.join(sorted(unknown))} already; only batch= and mode= can be changed"
            )
        return predict_run(subject, devices.device(device), **training, **options)
    if isinstance(subject, Workload):
        if options:
            raise PredictionError(f"a workload has its {', '.join(options)} already; trace it anew to change")
        asked = subject
    else:
        asked = workload(subject, **options)
    return predict_workload(asked, devices.device(device), **training)


def largest_batch(
    network: Any, *, input: Sequence[int], device: str | Device = "h200", gpus: int = 1, **options: Any
) -> Largest:
    """The most samples of a step that fit a device, with the prediction of that step.

    `options` are those of `workload`. `batch` is 0 where not even one fits, None where the memory is unknown.
    """
    from laptime.predict import devices
    from laptime.predict.largest import largest

    def read(size: int) -> Workload:
        return workload(network, input=input, batch=size, **options)

    return largest(read, [devices.device(device)], gpus=gpus)[0]
