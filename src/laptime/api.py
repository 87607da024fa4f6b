"""The public sentence: record a loop, load a run, predict a step elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.runs import Run, load
from laptime.runs.locations import default_out

if TYPE_CHECKING:
    from laptime.estimate.largest_batch import Largest
    from laptime.hardware import Device
    from laptime.model import Workload
    from laptime.model.prediction import Prediction
    from laptime.recorder.arguments import Networks, Optimizers
    from laptime.recorder.clocks import Clock
    from laptime.recorder.layer_division import Granularity
    from laptime.recorder.recorder import Recorder

__all__ = ["Run", "default_out", "load", "predict", "record", "workload"]


class _Viewer:
    """How a run draws itself; nothing of it is imported before it is asked for."""

    def report(self, run: Run, out: Path | str | None) -> Path:
        from laptime.render.html.write import write_report

        return write_report([run], out)

    def html(self, run: Run) -> str:
        from laptime.render.html.notebook import notebook

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
    precision: str = "fp32",
    mode: str = "training",
    optimizer: Any = "momentum",
    loss: Any = None,
    layers: Granularity = "layer",
    name: str = "",
) -> Workload:
    """What one step of a network asks of any machine, read off it without running or allocating it.

    network    a module, on any device, also `meta`
    input      the shape of one sample without the batch, with batch= (1 if left out); or
    example    a batch: tensors, or a tuple or dict of them
    precision  "fp32" (torch's defaults: TF32 in convolutions), or autocast in "bf16" or "fp16"
    mode       "training" or "inference"
    optimizer  its name, or one of torch's own
    loss       a function of (network, batch), the batch a tuple or a dict; by default cross-entropy on the
               first output, or the loss that the network gives
    """
    from dataclasses import replace

    from laptime.capture import inputs, trace
    from laptime.recorder.layer_division import Division

    network, notes = inputs.module(network)
    given = inputs.batch(network, input, example, batch)
    division = Division(network, granularity=layers, network=0, prefix="", first=0)
    options = {} if loss is None else {"loss": loss}
    read = trace(
        network,
        given,
        division=division,
        precision=precision,
        mode=mode,
        optimizer=inputs.optimizer(optimizer),
        name=name,
        **options,
    )
    return replace(read, precision=inputs.precision(network, precision), notes=(*notes, *read.notes))


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
    from laptime.estimate import device_speed
    from laptime.estimate.predict import predict as predict_workload
    from laptime.model import Workload

    training: dict[str, Any] = {
        "samples": samples,
        "epochs": epochs,
        "price_per_hour": price_per_hour,
        "gpus": gpus,
    }
    if isinstance(subject, str | Path):
        path = Path(subject)
        if not path.exists():
            raise PredictionError(
                f"no run and no saved workload is at {path}; give one, or a network (nn.Module) with input="
            )
        is_run = path.is_dir() or path.name == "run.json"
        subject = load(path) if is_run else Workload.load(path)
    if isinstance(subject, Run):
        from laptime.estimate.run_correction import predict_run

        unknown = set(options) - {"batch", "mode"}
        if unknown:
            raise PredictionError(
                f"a run has its {', '.join(sorted(unknown))} already; only batch= and mode= can be changed"
            )
        return predict_run(subject, device_speed.device(device), **training, **options)
    if isinstance(subject, Workload):
        if options:
            raise PredictionError(f"a workload has its {', '.join(options)} already; trace it anew to change")
        asked = subject
    else:
        asked = workload(subject, **_known(workload, options))
    return predict_workload(asked, device_speed.device(device), **training)


def _known(function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that a function has; another one is told with the nearest."""
    from difflib import get_close_matches
    from inspect import signature

    from laptime.errors import PredictionError

    names = [name for name in signature(function).parameters if name != "network"]
    for name in options:
        if name not in names:
            near = get_close_matches(name, [*names, "device", "samples", "epochs", "gpus"], n=1)
            hint = f"did you mean {near[0]}=?" if near else f"there are {', '.join(names)}"
            raise PredictionError(f"there is no option {name}=; {hint}")
    return dict(options)


def largest_batch(
    network: Any, *, input: Sequence[int], device: str | Device = "h200", gpus: int = 1, **options: Any
) -> Largest:
    """The most samples of a step that fit a device, with the prediction of that step.

    `options` are those of `workload`. `batch` is 0 where not even one fits, None where the memory is unknown.
    """
    from laptime.errors import PredictionError
    from laptime.estimate import device_speed
    from laptime.estimate.largest_batch import largest

    unfit = {"batch", "example"} & set(options)
    if unfit:
        raise PredictionError(f"the batch is what is asked for; leave out {', '.join(sorted(unfit))}=")
    options = _known(workload, options)

    def read(size: int) -> Workload:
        return workload(network, input=input, batch=size, **options)

    return largest(read, [device_speed.device(device)], gpus=gpus)[0]
