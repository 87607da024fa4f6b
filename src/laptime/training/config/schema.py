"""The schema of a training's configuration. Every field says what it means; `--explain` prints that.

No torch here: a configuration is checked before anything heavy is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy takes; torch takes more


class _Section(BaseModel):
    """Frozen, strict about names: an unknown key is an error, not a wish."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class NetworkConfig(_Section):
    """What is trained."""

    name: str
    """A network of the zoo, or `module:callable` for one of your own."""
    options: dict[str, Any] = {}
    """Handed to the network's class, such as `batch_norm = true` for VGG."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Replaces the share of every dropout layer in the network."""


class ZenerData(_Section):
    """Zener cards, drawn on demand: circle, cross, waves, square, star."""

    kind: Literal["zener"] = "zener"
    samples: PositiveInt = 1000
    """Cards to train on."""
    validation_samples: Count = 500
    """Cards that are never trained on."""
    size: Annotated[int, Field(ge=8, le=512)] = 32
    """Pixels along a side."""
    noise: Annotated[float, Field(ge=0.0, le=2.0)] = 0.1
    """Standard deviation of the noise on each pixel; ink is 1, paper 0."""
    seed: Seed = 1
    """Another seed deals other cards."""


class SyntheticData(_Section):
    """Random numbers of any shape, made once, with random labels: for timing, not for learning."""

    kind: Literal["synthetic"] = "synthetic"
    samples: PositiveInt = 512
    """Samples to train on."""
    validation_samples: Count = 0
    """Samples to validate on."""
    shape: tuple[PositiveInt, ...] | None = None
    """One sample, such as [3, 224, 224]; by default what the network takes."""
    classes: PositiveInt | None = None
    """Labels are drawn below this; by default as many as the network tells apart."""
    ids: Count = 0
    """Samples are whole numbers below this; 0: real numbers."""
    seed: Seed = 1
    """Another seed gives other numbers."""


class FolderData(_Section):
    """Images in folders, one folder per class, as in ImageNet: PATH/class/image.jpg or PATH/train/class/….

    Where PATH has `train` and `val` (or `validation`), these are used; else a share is held out.
    """

    kind: Literal["folder"] = "folder"
    path: Path
    """The folder of images."""
    remote: str | None = None
    """Where `laptime data sync` brings the classes from: a file, sftp, s3 or http address."""
    classes: tuple[str, ...] = ()
    """The class folders to use, by name; all of them if empty."""
    labels: Path | None = None
    """A dictionary from folder names to readable ones: TOML, JSON, or lines of `folder name`."""
    size: Annotated[int, Field(ge=8, le=2048)] = 224
    """Pixels along a side of what the network sees."""
    augment: Literal["none", "crop", "crop-flip"] = "crop-flip"
    """Training images: cut in the middle, a random crop, or a random crop mirrored half the time."""
    validation_share: Share = 0.2
    """Held out of each class, where there is no folder for it."""
    per_class: Count = 0
    """At most this many images of each class; 0: all."""
    on_corrupt: Literal["skip", "refuse"] = "skip"
    """An image that cannot be read: count it and go on with another, or stop."""


class DigitsData(_Section):
    """Scikit-learn's 1797 handwritten digits of 8x8 pixels: real data without a download."""

    kind: Literal["digits"] = "digits"
    validation_share: Share = 0.2
    """Held out of each class."""
    flat: bool | None = None
    """Rows of 64 numbers instead of images; by default what the network takes."""


class TextData(_Section):
    """Pieces of a text as character numbers, each with itself moved by one as its target."""

    kind: Literal["text"] = "text"
    path: Path | None = None
    """A text file in UTF-8; by default the licence of laptime, which is everywhere."""
    length: Annotated[int, Field(ge=2, le=65536)] = 64
    """Characters in a sample."""
    validation_share: Share = 0.1
    """The end of the text, held out."""


class TreesData(_Section):
    """Arithmetic on truth values, as trees: `and`, `or` and `not` over leaves; the target is the value."""

    kind: Literal["trees"] = "trees"
    samples: PositiveInt = 2000
    """Trees to train on."""
    validation_samples: Count = 500
    """Trees that are never trained on."""
    depth: Annotated[int, Field(ge=1, le=12)] = 5
    """Of the deepest trees."""
    seed: Seed = 1
    """Another seed grows other trees."""


DataConfig = Annotated[
    ZenerData | SyntheticData | FolderData | DigitsData | TextData | TreesData, Field(discriminator="kind")
]


class LoaderConfig(_Section):
    """How batches come to the device."""

    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that read and decode; 0: the training process itself."""
    prefetch: Annotated[int, Field(ge=1, le=64)] = 2
    """Batches that each worker prepares ahead."""
    pin_memory: bool | None = None
    """Page-locked batches, copied to the GPU beside the computation; by default where there is a GPU."""
    ahead: bool = True
    """Copy the next batch to the device while this one computes."""
    resident: bool = True
    """Keep what a GPU can hold there: data of up to 1 GiB, and images as bytes until they have arrived."""
    shuffle: bool = True
    """Another order in every epoch, from the seed."""
    drop_last: bool = True
    """Leave out a last batch that is not full."""


class TrainConfig(_Section):
    """The loop."""

    batch: PositiveInt = 32
    """Samples in a step, on each device."""
    epochs: PositiveInt = 10
    """Times through the data."""
    steps: PositiveInt | None = None
    """Stop after this many training steps, whatever the epochs."""
    accumulate: PositiveInt = 1
    """Steps whose gradients are summed for one update."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """The largest norm of a gradient."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the forward and backward pass; fp16 scales its losses."""
    channels_last: bool = False
    """Image tensors with their channels innermost, which convolutions on tensor cores prefer."""
    compile: bool = False
    """Put the network through torch.compile: one unit in the layer table."""
    device: str | None = None
    """cpu, cuda or cuda:N; by default a GPU if there is one."""
    threads: PositiveInt | None = None
    """Of the CPU; by default as many as torch chooses, or each rank its share of the cores."""
    seed: Seed = 0
    """Of weights, order, augmentation and dropout."""
    memory_limit: Annotated[float, Field(gt=0)] | None = None
    """GiB that the device's allocator may take: the GPU's memory, or the process's on a CPU."""
    on_nan: Literal["stop", "go-on"] = "stop"
    """What to do when a loss is no number."""


class OptimizerConfig(_Section):
    """How gradients change the parameters."""

    name: Literal["sgd", "momentum", "adagrad", "adadelta", "adam", "adamw", "rmsprop"] = "momentum"
    """`momentum` is SGD with momentum, which the thesis used."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """The learning rate; by default the usual one of the optimizer."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Of `momentum` and `rmsprop`."""
    nesterov: bool = False
    """Nesterov's form of `momentum`."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Of `adam` and `adamw`."""
    eps: Annotated[float, Field(gt=0)] | None = None
    """Added to a denominator; by default the usual one of the optimizer."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Pulls the parameters towards zero."""


class ScheduleConfig(_Section):
    """How the learning rate changes."""

    name: Literal["constant", "step", "exponential", "linear", "cosine"] = "constant"
    """`step` multiplies by `gamma` every `every` epochs; `linear` and `cosine` fall to `final`."""
    warmup_steps: Count = 0
    """Updates during which the rate rises from nearly zero."""
    every: PositiveInt = 30
    """Epochs between two steps."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The factor of `step`, and of each epoch of `exponential`."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the rate that is left at the end of `linear` and `cosine`."""


class LossConfig(_Section):
    """What is made small."""

    name: Literal["cross-entropy", "binary-cross-entropy", "squared"] | None = None
    """By default what the network is meant for."""


class ValidationConfig(_Section):
    """What is held against data that was never trained on."""

    every: Count = 1
    """Epochs between two validations; 0: never."""
    folds: Annotated[int, Field(ge=0, le=100)] = 0
    """k-fold cross-validation: the data in k parts, each held out in turn; 0: no."""
    topn: Annotated[int, Field(ge=1, le=1000)] = 5
    """A sample also counts if its class is among the first n of the network's ranking."""

    @model_validator(mode="after")
    def _two_folds(self) -> ValidationConfig:
        if self.folds == 1:
            raise ValueError("folds = 1 holds out everything; use 0 for none, or 2 and more")
        return self


class CheckpointConfig(_Section):
    """What is saved to go on from, in the run's `checkpoint` folder: the last state and the best."""

    every: Count = 1
    """Epochs between two checkpoints; 0: only at the end."""
    every_steps: Count = 0
    """Training steps between two checkpoints, within an epoch too; 0: no."""
    best: bool = True
    """Also keep the state with the best validation (or training) loss."""


class RecordConfig(_Section):
    """What laptime measures while it trains."""

    profile: bool = True
    """Layers on every step; false: only steps, losses and accounts."""
    layers: str = "layer"
    """What a layer is: `layer`, `module`, a depth such as `2`."""
    kernels: tuple[Count, ...] = ()
    """Steps whose kernels are traced."""


class Config(_Section):
    """A training, complete."""

    name: str = ""
    """What the run is called; by default the configuration file's name."""
    network: NetworkConfig
    data: DataConfig
    loader: LoaderConfig = LoaderConfig()
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    loss: LossConfig = LossConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    record: RecordConfig = RecordConfig()
