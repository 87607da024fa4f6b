"""The eleven accounts a moment of a step can go to, and the words beside them."""

from __future__ import annotations

from enum import StrEnum


class Account(StrEnum):
    """Where a moment of a step goes. The order is the order of the columns on disk."""

    DATA_WAIT = "data_wait"  # the loop waits for its next batch
    COPY = "copy"  # the batch moves to the device
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"
    COMMUNICATION = "communication"  # the exposed part of collectives
    IDLE = "idle"  # the device has nothing to do; known only on kernel-traced steps
    HOST = "host"  # Python between the phases: zero_grad, clipping, logging, checkpoints
    INSTRUMENT = "instrument"  # the recorder's own work
    UNEXPLAINED = "unexplained"  # what is left of the wall time

    @property
    def column(self) -> str:
        """The account's column in `steps/*.parquet`."""
        return f"{self.value}_s"


ACCOUNTS: tuple[Account, ...] = tuple(Account)
COMPUTE: tuple[Account, ...] = (Account.FORWARD, Account.LOSS, Account.BACKWARD, Account.UPDATE)


class Phase(StrEnum):
    """What a layer is doing."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Stage(StrEnum):
    """What a step is for."""

    TRAIN = "train"
    VALIDATION = "validation"


class How(StrEnum):
    """How a number was obtained."""

    MEASURED = "measured"
    ALLOCATED = "allocated"  # a shared kernel, split by bytes
    ESTIMATED = "estimated"
    PREDICTED = "predicted"
