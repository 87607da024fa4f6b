"""How a training ends before its end: somebody stops it, or the machine cannot go on. One line each."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from laptime.errors import TrainingError
from laptime.store.files import first_line
from laptime.train.config import TrainConfig


class Interruption:
    """The first Ctrl-C asks to end after the running step; the second ends at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Listen for it. Only a main thread hears signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            self._say("stopping after this step; press Ctrl-C again to stop at once")

        earlier = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, earlier)


def understood(error: RuntimeError, train: TrainConfig, device: torch.device) -> TrainingError | None:
    """What torch's own errors mean; None for those that are somebody's bug."""
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
