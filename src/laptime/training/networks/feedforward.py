"""Networks of linear layers alone: the shallow one to try first, and those of the framework study."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from laptime.training.networks.registry import network


@network("feedforward", input=(64,), classes=10, data="digits", parameters=5_560)
class FeedForward(nn.Sequential):
    """One hidden layer, as wide as inputs and outputs together: 64·74 + 74 + 74·10 + 10 = 5,560 parameters.

    The guide (recipes/README.md): hidden nodes near the number of inputs and outputs, and not fewer than the
    inputs. `hidden` gives other widths, one for each hidden layer.
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
        widths = (inputs, *(hidden or (inputs + num_classes,)))
        for index, (below, above) in enumerate(pairwise(widths), start=1):
            layers[f"fc{index}"] = nn.Linear(below, above)
            layers[f"relu{index}"] = nn.ReLU(inplace=True)
            layers[f"dropout{index}"] = nn.Dropout(dropout)
        layers["output"] = nn.Linear(widths[-1], num_classes)
        super().__init__(layers)


@network("fcn5", input=(512,), classes=1000, parameters=11_492_328, options={"hidden_layers": 3})
@network("fcn8", input=(512,), classes=1000, parameters=24_081_384, options={"hidden_layers": 6})
class FCN(nn.Sequential):
    """Linear layers of 2048 with a sigmoid each: FCN-5 has three hidden ones, FCN-8 six.

    Shi et al., "Benchmarking state-of-the-art deep learning software tools", arXiv:1608.07249; the names
    count the input and the output as layers. Its large form is `inputs=26752, num_classes=26752`, with about
    118 and 131 million parameters; its small one, 512 to 1000, is the default here. With h hidden layers of n
    units there are (inputs + 1)·n + (h - 1)·(n + 1)·n + (n + 1)·classes parameters.
    """

    def __init__(
        self, *, inputs: int = 512, num_classes: int = 1000, hidden: int = 2048, hidden_layers: int = 3
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for index, (below, above) in enumerate(pairwise([inputs, *[hidden] * hidden_layers]), start=1):
            layers[f"fc{index}"] = nn.Linear(below, above)
            layers[f"sigmoid{index}"] = nn.Sigmoid()
        layers[f"fc{hidden_layers + 1}"] = nn.Linear(hidden, num_classes)
        super().__init__(layers)
        # Glorot's initialisation of a tanh network, told in sigmoids, without which six learn nothing:
        # sigmoid(z) is 1/2 + tanh(z/2)/2. So weights between two sigmoids are four times as large, those at
        # either end twice, and biases take back the 1/2.
        linear = [layer for layer in self if isinstance(layer, nn.Linear)]
        for index, layer in enumerate(linear):
            nn.init.xavier_normal_(layer.weight, gain=4.0 if 0 < index < len(linear) - 1 else 2.0)
            with torch.no_grad():
                layer.bias.copy_(-0.5 * layer.weight.sum(dim=1) if index else torch.zeros_like(layer.bias))
