"""What is predicted: a network or its name, a saved workload, a run. API, CLI and dashboard all ask here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.errors import FixedOption, PredictionError, UnknownInput, UnknownNetwork, WorkloadError
from laptime.hardware import Device
from laptime.model import Workload
from laptime.model.prediction import Prediction
from laptime.runs import Run, load
from laptime.training import target
from laptime.training.target import Sample

if TYPE_CHECKING:
    from torch import nn

    from laptime.estimate.run_correction import Correction
    from laptime.recorder.layer_division import Granularity

BATCH = 32  # samples of a step where none are asked for and the input is known
MOST_SAMPLES = 10**9  # of a step: no tensor of more was ever trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """How a network is read; a saved workload and a run have all of it already. None: not said."""

    input: Any = None  # the shape of one sample without the batch
    inputs: Sequence[Sample] | None = None  # or all inputs of a sample with their types
    example: Any = None  # or a batch
    precision: str | None = None
    mode: str | None = None
    optimizer: Any = None
    loss: Any = None
    layers: Granularity | None = None
    name: str = ""

    def refuse(self, what: str, *allowed: str) -> None:
        """Raise where something was said that cannot be changed any more."""
        for option in fields(self):
            if option.name not in ("name", *allowed) and getattr(self, option.name) is not None:
                raise FixedOption(option.name, what)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTarget:
    """A step at any batch size, and its prediction on devices."""

    read: Callable[[int], Workload]  # each batch size is read once
    batch: int  # where none is asked for
    traced: bool = False  # a network, rather than what was kept of one
    run: Run | None = None  # what it took corrects the predictions
    mode: str | None = None  # of the run's steps; None: its own

    def predict(self, size: int, devices: Sequence[Device], **training: Any) -> list[Prediction]:
        """A step of that batch on each device; `training`: samples, epochs, price_per_hour and gpus."""
        from laptime.estimate.predict import predict_all
        from laptime.estimate.run_correction import predict_run

        if self.run is None:
            return predict_all(self.read(size), devices, **training)
        return predict_run(self.run, devices, batch=size, mode=self.mode, **training)

    def correction(self) -> Correction | None:
        """What the run took over what is predicted for it; None where nothing was measured."""
        from laptime.estimate.run_correction import correction_of

        return None if self.run is None else correction_of(self.run)


def prediction_target(subject: Any, options: NetworkOptions) -> PredictionTarget:
    """The target that a network, a name, a path, a `Workload` or a `Run` stands for."""
    if isinstance(subject, Path | str):
        subject = _stored(subject) or subject
    if isinstance(subject, Run):
        from laptime.estimate.run_correction import named_workload

        options.refuse("a run", "mode")
        # Nothing was measured in a simulated run that could correct a prediction.
        measured = None if subject.simulated else subject
        return _kept(named_workload(subject), run=measured, mode=options.mode)
    if isinstance(subject, Workload):
        options.refuse("a saved workload")
        return _kept(subject)
    if isinstance(subject, str):
        return _named(subject, options)
    return _network(subject, options)


def _stored(subject: str | Path) -> Run | Workload | None:
    """The run or the saved workload at a path; None where the text is a name."""
    path = Path(subject)
    if path.name == "run.json" or (path / "run.json").is_file():
        return load(path)
    if path.name.endswith(".json"):
        return Workload.load(path)
    if isinstance(subject, Path) or path.is_dir():
        raise PredictionError(f"no run and no saved workload is at {path}; give one, or a network")
    return None


def _kept(workload: Workload, *, run: Run | None = None, mode: str | None = None) -> PredictionTarget:
    from laptime.ops.rescaling import rescaled

    return PredictionTarget(
        read=cache(lambda size: rescaled(workload, size)), batch=workload.batch, run=run, mode=mode
    )


def _network(network: Any, options: NetworkOptions) -> PredictionTarget:
    """A module with its input: as given, or as its configuration tells."""
    import torch

    from laptime.capture import inputs

    module, notes = inputs.module(network)
    make: Callable[[int], Any]
    if options.example is not None:
        example = inputs.batch(module, options.input, options.example, None)
        return replace(_kept(_read(module, options, example, notes)), traced=True)
    if options.inputs is not None:
        samples = [(sample.shape, getattr(torch, sample.dtype)) for sample in options.inputs]
        usual, make = (
            BATCH,
            lambda size: tuple(
                torch.zeros((size, *shape), dtype=dtype, device="meta") for shape, dtype in samples
            ),
        )
    elif options.input is not None:
        usual, make = 1, lambda size: inputs.batch(module, options.input, None, size)
    elif (known := inputs.config_input(module, options.mode or "training")) is not None:
        usual, make, notes = BATCH, known.make, (known.note, *notes)
    else:
        ids = any(isinstance(submodule, torch.nn.Embedding) for submodule in module.modules())
        shape = "token ids as int64:128" if ids else "3x224x224, or (3, 224, 224) in Python"
        raise UnknownInput(
            f"{options.name or type(module).__name__} does not say what it takes; "
            f"give the shape of one sample as input, such as {shape}"
        )

    @cache
    def read(size: int) -> Workload:
        if type(size) is int and size > MOST_SAMPLES:
            raise WorkloadError(f"batch is {size}; give at most {MOST_SAMPLES:,} samples")
        return _read(module, options, make(size), notes)

    return PredictionTarget(read=read, batch=usual, traced=True)


def _read(module: nn.Module, options: NetworkOptions, batch: Any, notes: Sequence[str]) -> Workload:
    """What one step of a network asks of any machine, read off it without running or allocating it."""
    from laptime.capture import inputs, trace
    from laptime.recorder.layer_division import Division

    precision = options.precision or "fp32"
    read = trace(
        module,
        batch,
        division=Division(module, granularity=options.layers or "layer", network=0, prefix="", first=0),
        precision=precision,
        mode=options.mode or "training",
        optimizer=options.optimizer or "momentum",
        name=options.name,
        **({} if options.loss is None else {"loss": options.loss}),
    )
    return replace(read, precision=inputs.precision(module, precision), notes=(*notes, *read.notes))


def _named(name: str, options: NetworkOptions) -> PredictionTarget:
    """A network of the zoo, of `transformers`, or what `module:callable` and `file.py:callable` name."""
    import torch

    from laptime.training.networks.registry import entry

    options = replace(options, name=options.name or name)
    known = None
    if ":" not in name and not name.endswith(".py"):
        try:
            known = entry(name)
        except UnknownNetwork:
            network = transformers_network(name)
            if network is None:
                raise
            return _network(network, options)
    with torch.device("meta"):
        network = target.network(name)
    if known is None or any(given is not None for given in (options.input, options.inputs, options.example)):
        return _network(network, options)
    ids = known.ids
    inputs = [Sample(shape=known.input, dtype="int64" if ids else "float32")]
    if options.mode != "inference":
        inputs.append(Sample(shape=known.input if ids and not known.classes else (), dtype="int64"))
        if options.loss is None:
            goal = known.goal(None)
            options = replace(options, loss=lambda network, batch: goal.judge(network, batch).loss)
    return _network(network, replace(options, inputs=inputs))


def transformers_network(name: str) -> nn.Module | None:
    """A network of `transformers` by the name of its type, such as `gpt2`, or of a checkpoint kept here.

    It has the type's usual sizes and no weights; nothing is downloaded. None where there is none.
    """
    if find_spec("transformers") is None:
        return None
    import torch
    import transformers

    if name in transformers.CONFIG_MAPPING:
        config = transformers.AutoConfig.for_model(name)
    else:
        try:
            config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
        except (OSError, ValueError):
            return None
    kinds = ("MaskedLM", "Seq2SeqLM", "CausalLM", "ImageClassification")
    autos = [getattr(transformers, f"AutoModelFor{kind}") for kind in kinds]
    fitting = [auto for auto in autos if type(config) in auto._model_mapping]
    with torch.device("meta"):
        made: nn.Module = (*fitting, transformers.AutoModel)[0].from_config(config)
    return made
