"""A deconvolutional network: convolutions that shrink an image, transposed ones that draw it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from laptime.training.networks.autoencoder import reconstruction
from laptime.training.networks.registry import network


@network("deconv", input=(1, 32, 32), classes=0, data="zener", goal=reconstruction, parameters=33_393)
class Deconvolutional(nn.Module):
    """Three 4x4 convolutions that halve the image, three transposed ones that double it: 33,393 parameters.

    A convolution from i to o maps has 16·i·o + o parameters, either way: 272 + 8,224 + 8,208 down to a code
    of 16x4x4, a quarter of a card's pixels, and 8,224 + 8,208 + 257 up again. Zeiler et al., "Deconvolutional
    networks", CVPR 2010; as encoder and decoder in Noh et al., arXiv:1505.04366.
    """

    def __init__(self, *, channels: int = 1, maps: Sequence[int] = (16, 32, 16)) -> None:
        super().__init__()
        down = (channels, *maps)
        up = down[::-1]
        self.encoder = _stack("conv", nn.Conv2d, down)
        self.relu = nn.ReLU(inplace=True)
        self.decoder = _stack("deconv", nn.ConvTranspose2d, up)

    def forward(self, images: Tensor) -> Tensor:
        """The images drawn again. The sides of an image are multiples of 2 for each convolution."""
        again: Tensor = self.decoder(self.relu(self.encoder(images)))
        return again


def _stack(name: str, kind: type[nn.Conv2d] | type[nn.ConvTranspose2d], maps: Sequence[int]) -> nn.Sequential:
    """Convolutions with a ReLU between every two."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, (inputs, outputs) in enumerate(pairwise(maps), start=1):
        if layers:
            layers[f"relu{index - 1}"] = nn.ReLU(inplace=True)
        layers[f"{name}{index}"] = kind(inputs, outputs, kernel_size=4, stride=2, padding=1)
    return nn.Sequential(layers)
