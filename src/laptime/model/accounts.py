"""Accounts, which the time of a step is charged to, and the enums that label steps and numbers."""

from __future__ import annotations

from enum import StrEnum


class Account(StrEnum):
    """Where a moment of a step goes. The order is the order of the columns on disk.

    A line here is all that an account needs: its name, its meaning, whether the device computes in it, and
    whether only a kernel trace knows it. Columns, owner codes, tables, findings and pages follow from this
    list; a colour, a threshold and a remedy of its own can be given in `views`.
    """

    DATA_WAIT = "data_wait", "the loop waits for its next batch"
    COPY = "copy", "the batch moves to the device"
    FORWARD = "forward", "the network's forward pass", "compute"
    LOSS = "loss", "from the network's output to the loss", "compute"
    BACKWARD = "backward", "the backward pass, the loss' own included", "compute"
    UPDATE = "update", "the optimizer", "compute"
    COMMUNICATION = "communication", "waiting for other ranks: the exposed part of collectives"
    IDLE = (
        "idle",
        "the device has nothing to do; known on kernel-traced steps and for stages of a pipeline",
        "traced",
    )
    HOST = "host", "Python between the phases: zero_grad, clipping, logging, checkpoints"
    INSTRUMENT = "instrument", "the recorder's own work"
    UNEXPLAINED = "unexplained", "what is left of the wall time"

    meaning: str
    compute: bool  # the device works for the network
    traced: bool  # null on steps without a kernel trace: unknown is not zero

    def __new__(cls, value: str, meaning: str = "", kind: str = "") -> Account:
        account = str.__new__(cls, value)
        account._value_ = value
        account.meaning, account.compute, account.traced = meaning, kind == "compute", kind == "traced"
        return account

    @property
    def column(self) -> str:
        """The account's column in `steps/*.parquet`."""
        return f"{self.value}_s"


ACCOUNTS: tuple[Account, ...] = tuple(Account)
COMPUTE: tuple[Account, ...] = tuple(account for account in ACCOUNTS if account.compute)


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
