"""Why a training ends early: a signal, or an error of torch's, each explained in one line."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from laptime.errors import ConfigError, TrainingError
from laptime.files.text import first_line
from laptime.training.config.schema import TrainConfig
from laptime.training.objectives import Batch
from laptime.training.stop_signals import STOPPING, Requests, hearing


class Interruption:
    """The first Ctrl-C or SIGTERM asks to end after the running step; the second ends at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._requests = Requests()
        self._say = say

    @property
    def asked(self) -> bool:
        """Whether a signal has arrived."""
        return self._requests.times > 0

    @property
    def ending(self) -> KeyboardInterrupt:
        """The exception to raise for it."""
        return self._requests.ending

    def awaited(self) -> AbstractContextManager[None]:
        """Handle signals while this lasts."""
        return hearing(self._heard)

    def _heard(self, number: int) -> None:
        if not self._requests.hear(number):
            return
        if self._requests.times > 1:
            raise self.ending
        if number == signal.SIGINT:
            self._say(STOPPING)


def understood(error: RuntimeError, train: TrainConfig, device: torch.device) -> TrainingError | None:
    """An error of torch's explained, such as out of memory; None for any other."""
    said = str(error)
    short = "can't allocate memory" in said or "not enough memory" in said
    if short or isinstance(error, torch.OutOfMemoryError):
        smaller = f"train.batch = {train.batch // 2}" if train.batch > 1 else "a smaller network"
        more = " or raise train.memory_limit" if train.memory_limit is not None else ""
        return TrainingError(
            f"batch {train.batch} does not fit into the memory of {device}; try {smaller}{more}"
        )
    if "DataLoader worker" in said:
        return TrainingError(
            f"a loader worker died ({first_line(error)}); lower loader.workers, or give it more memory"
        )
    return None


UNFIT = (RuntimeError, IndexError, ValueError, TypeError)
"""What a network, or a loss after it, raises at a batch that it cannot take."""


def does_not_fit(error: Exception, network: str, batch: Batch, classes: Sequence[str]) -> ConfigError:
    """The error for a network that fails on its first batch: the data does not fit the network."""
    shapes = [f"{'x'.join(map(str, tensor.shape))}" for tensor in batch if isinstance(tensor, torch.Tensor)]
    given = f" of shape {shapes[0]}" if shapes else ""
    said = first_line(error)
    if isinstance(error, IndexError) and "out of bounds" in said and classes:
        return ConfigError(
            f"the data has {len(classes)} classes, and {network} gives scores for fewer ({said}); give it as "
            "many outputs, by network.options where it takes them"
        )
    return ConfigError(
        f"{network} fails on the first batch, an input{given} ({type(error).__name__}: {said}); change the "
        "network or its network.options, or what data gives it"
    )
