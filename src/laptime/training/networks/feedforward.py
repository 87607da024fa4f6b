"""A feed-forward network: the shallow network to try first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from laptime.training.networks.registry import network


@network("feedforward", input=(64,), classes=10, data="digits", parameters=5_560)
class FeedForward(nn.Sequential):
    """One hidden layer, as wide as inputs and outputs together: 64·74 + 74 + 74·10 + 10 = 5,560 parameters.

    Document C: hidden nodes near the number of inputs and outputs, and not fewer than the inputs. `hidden`
    gives other widths, one for each hidden layer.
    """

    def __init__(
        self,
        *,
        inputs: int = 64,
        num_classes: int = 10,
        hidden: Sequence[int] | None = None,
        dropout: float = 0.0,
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = inputs
        for index, units in enumerate(hidden or (inputs + num_classes,), start=1):
            layers[f"fc{index}"] = nn.Linear(width, units)
            layers[f"relu{index}"] = nn.ReLU(inplace=True)
            layers[f"dropout{index}"] = nn.Dropout(dropout)
            width = units
        layers["output"] = nn.Linear(width, num_classes)
        super().__init__(layers)
