"""What a moment of a traced step is charged to."""

from __future__ import annotations

from dataclasses import dataclass

from laptime.model import Account
from laptime.model.layers import LOSS_LAYER


@dataclass(frozen=True, slots=True)
class Owner:
    """An account, and a layer where the moment belongs to one."""

    account: Account
    layer: str | None = None


LOSS = Owner(Account.LOSS, LOSS_LAYER)
COPY = Owner(Account.COPY)
COMMUNICATION = Owner(Account.COMMUNICATION)
NOBODY = Owner(Account.UNEXPLAINED)
