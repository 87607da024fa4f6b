"""The schema of a training's configuration: the one source of keys, types, bounds, defaults and meanings.

Sections that belong to a register stand beside it: `data.kinds` and `optimizers`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt

from laptime.training.config_section import ConfigSection, Count, Seed, Share
from laptime.training.data.kinds import DataConfig
from laptime.training.optimizers import LossConfig, OptimizerConfig, ScheduleConfig
from laptime.training.parallel import ParallelConfig


class NetworkConfig(ConfigSection):
    """What is trained."""

    name: str
    """A network of the zoo, or `module:callable` for one of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Handed to the network's class, such as `batch_norm = true` for VGG."""
    dropout: Share | None = None
    """Replaces the share of every dropout layer in the network."""


class LoaderConfig(ConfigSection):
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


class UntilConfig(ConfigSection):
    """A target: the training ends when a validation reaches it. One of the two, or none."""

    loss: Annotated[float, Field(gt=0)] | None = None
    """End when the validation loss is at most this."""
    top1: Annotated[float, Field(gt=0, le=1)] | None = None
    """End when the validation's top-1 accuracy is at least this."""

    @property
    def metric(self) -> str | None:
        """What the target is of; None without a target."""
        return next((name for name in ("loss", "top1") if getattr(self, name) is not None), None)

    def reached(self, *, loss: float, top1: float) -> bool:
        """Whether a validation with these results reaches the target."""
        if self.loss is not None:
            return loss <= self.loss
        return self.top1 is not None and top1 >= self.top1


class TrainConfig(ConfigSection):
    """The loop."""

    batch: PositiveInt = 32
    """Samples in a step, on each device."""
    epochs: PositiveInt = 10
    """Times through the data."""
    steps: PositiveInt | None = None
    """Stop after this many training steps, whatever the epochs."""
    until: UntilConfig = UntilConfig()
    accumulate: PositiveInt = 1
    """Steps whose gradients are summed for one update."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Gradients are scaled down to at most this norm."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the forward and backward pass; fp16 scales its losses."""
    channels_last: bool = False
    """Image tensors with their channels innermost, which convolutions on tensor cores prefer."""
    compile: bool = False
    """Put the network through torch.compile: one unit in the layer table."""
    device: str | None = None
    """cpu, cuda or cuda:N; by default a GPU if there is one."""
    threads: PositiveInt | None = None
    """CPU threads; by default torch's choice, or for several ranks a share of the cores each."""
    seed: Seed = 0
    """Seed of weights, order, augmentation and dropout."""
    memory_limit: Annotated[float, Field(gt=0)] | None = None
    """GiB that the device's allocator may take: the GPU's memory, or the process's on a CPU."""
    on_nan: Literal["stop", "go-on"] = "stop"
    """When a loss is NaN: stop, or go on."""


def _not_one(folds: int) -> int:
    if folds == 1:
        raise ValueError("holds out everything; use 0 for none, or 2 and more")
    return folds


class ValidationConfig(ConfigSection):
    """Validation on data that is never trained on."""

    every: Count = 1
    """Epochs between two validations; 0: never."""
    folds: Annotated[int, Field(ge=0, le=100), AfterValidator(_not_one)] = 0
    """k-fold cross-validation: the data in k parts, each held out in turn; 0: no."""
    topn: Annotated[int, Field(ge=1, le=1000)] = 5
    """The n of top-n accuracy: the share of samples whose class is among the n highest scores."""


class CheckpointConfig(ConfigSection):
    """Checkpoints to resume from, in the run's `checkpoint` folder: the last state and the best."""

    every: Count = 1
    """Epochs between two checkpoints; 0: only at the end."""
    every_steps: Count = 0
    """Training steps between two checkpoints, within an epoch too; 0: no."""
    best: bool = True
    """Also keep the state with the best validation loss."""


class RecordConfig(ConfigSection):
    """What laptime measures while it trains."""

    profile: bool = True
    """Layers on every step; false: only steps, losses and accounts."""
    layers: str = "layer"
    """What a layer is: `layer`, `module`, a depth such as `2`."""
    kernels: tuple[Count, ...] = ()
    """Steps whose kernels are traced."""


class Config(ConfigSection):
    """The configuration of a training."""

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
    parallel: ParallelConfig = ParallelConfig()
