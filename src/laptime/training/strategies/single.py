"""One rank: nothing is shared."""

from __future__ import annotations

from laptime.training.strategies import strategy
from laptime.training.strategies.contract import Strategy


@strategy("single")
class SingleRank(Strategy):
    """The network as it is."""
