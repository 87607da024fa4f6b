"""Small convolutional networks that tell Zener cards apart."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from torch import nn

from laptime.training.networks.registry import network

_entry = partial(network, input=(1, 32, 32), classes=5, data="zener")


@_entry("zener4", parameters=126_177)
@_entry("zener7", parameters=318_225, options={"convolutions": (10, 20, 40, 80, 100)})
class ZenerNet(nn.Sequential):
    """The Zener networks of four and seven layers: 126,177 and 318,225 parameters for 1x32x32 cards.

    "The effect of parallel processing on deep learning" says of its four layers that "the two hidden layers
    had 16 and 120 neurons" and leaves the first and the last open. Its program (amerrez/conv-nn-zener-images)
    reads convolutions and one hidden linear layer from a description named `lenet_5`, then adds the output.
    So we read four trainable layers: conv1, the input layer, with LeNet-5's 6 maps; conv2 with 16; fc1 with
    120 units; fc2 with one per class. The kernels are LeNet-5's 5x5. As in the program, convolutions are
    padded and a 2x2 pooling that rounds up comes before the ReLU; its images were 25 pixels wide (`size=25`).

    Of the seven layers the text gives the second to the sixth, "20, 40, 80, 100, 120". So five convolutions,
    the last hidden layer linear as in the four-layer network, and the first of 10 maps, our choice: the next
    three double, and so does the step to them. Five poolings leave one pixel of a 32-pixel card.
    """

    def __init__(
        self,
        *,
        num_classes: int = 5,
        size: int = 32,
        convolutions: Sequence[int] = (6, 16),
        hidden: int = 120,
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        inputs = 1
        for index, maps in enumerate(convolutions, start=1):
            layers[f"conv{index}"] = nn.Conv2d(inputs, maps, kernel_size=5, padding=2)
            layers[f"pool{index}"] = nn.MaxPool2d(2, ceil_mode=True)
            layers[f"relu{index}"] = nn.ReLU(inplace=True)
            inputs = maps
            size = (size + 1) // 2  # the pooling rounds up
        layers["flatten"] = nn.Flatten()
        layers["fc1"] = nn.Linear(inputs * size * size, hidden)
        layers["relu_fc1"] = nn.ReLU(inplace=True)
        layers["fc2"] = nn.Linear(hidden, num_classes)
        super().__init__(layers)
