"""Reads losses back from the device without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


class LossReadback:
    """Copies at most one loss at a time to the host; `known` returns the last that has arrived.

    `float(loss)` waits until the device has done all it was given, which then stands still until the host has
    caught up: 6 ms of a ResNet-50 step of 32 on an H200.
    """

    def __init__(self, device: torch.device) -> None:
        self._host: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._host = torch.zeros((), pin_memory=True)
            self._arrived = torch.cuda.Event()
        self._asked: int | None = None  # the step whose loss is being copied
        self._known: tuple[int, float | None] = (0, None)

    def take(self, step: int, loss: Tensor) -> None:
        """Start copying the loss of a step, unless an earlier copy is still running."""
        if self._host is None or self._arrived is None:
            self._known = step, float(loss.detach())
        elif self._asked is None:
            self._host.copy_(loss.detach(), non_blocking=True)
            self._arrived.record()
            self._asked = step

    def known(self, *, wait: bool = False) -> tuple[int, float | None]:
        """The latest loss that has arrived, and its step."""
        if self._asked is not None and self._host is not None and self._arrived is not None:
            if wait:
                self._arrived.synchronize()
            if self._arrived.query():
                self._known = self._asked, float(self._host)
                self._asked = None
        return self._known
