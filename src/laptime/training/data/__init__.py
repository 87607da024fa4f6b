"""What networks are trained on. A kind of data is one file here and one section of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from laptime.training.data.kinds import DataConfig

__all__ = ["Data", "NetworkInput", "open_data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInput:
    """What a network takes, as far as it is known before it is built."""

    input: tuple[int, ...] | None  # one sample, without the batch; None: unknown
    classes: int = 0  # 0: unknown, or none
    ids: int = 0  # whole numbers below this; 0: real numbers
    seed: int = 0  # the training's, for augmentation; it does not change what is held out


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Data to train and to validate on.

    A dataset answers `len()` and, for a whole batch at once, `__getitems__(picks)` with the batch as a tuple
    of tensors: no sample is ever handled alone, so nothing has to be put together (`collate` is identity).
    It may offer `for_device(device)`: itself as that device would rather have it; `resident`: whether its
    batches are made on the device already; and `reach`: how many neighbours on either side a sample overlaps.
    """

    train: Dataset[Any]
    validation: Dataset[Any] | None
    classes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)  # for the run's configuration: counts, paths, hashes
    problems: Callable[[], Sequence[str]] = tuple  # what was skipped so far, a line each


def open_data(config: DataConfig, wanted: NetworkInput) -> Data:
    """The data that a configuration describes; a `DataError` says in one line what is wrong with it."""
    module = import_module(f"{__name__}.{config.kind}")
    opened: Data = module.open_data(config, wanted)
    return opened
