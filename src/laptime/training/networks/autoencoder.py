"""Auto-encoders give their input back through something narrower: a layer, a distribution, small maps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from laptime.training.networks.registry import network
from laptime.training.objectives import Batch, Reconstruction, StepLoss, WithoutClasses


def noise(samples: int, size: int, like: Tensor, *, repeatable: bool) -> Tensor:
    """Rows of standard normal numbers, of the type and on the device of `like`.

    Repeatable noise is the same at every call and leaves the random state alone: validations can be compared
    with each other, and a training takes the same steps with and without them.
    """
    if not repeatable:
        return torch.randn(samples, size, device=like.device, dtype=like.dtype)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, size, generator=generator).to(like)


@network("autoencoder", input=(64,), classes=0, data="digits", goal=Reconstruction, parameters=4_192)
class AutoEncoder(nn.Module):
    """Half as many hidden units as inputs: 64·32 + 32 + 32·64 + 64 = 4,192 parameters.

    The guide (recipes/README.md): an auto-encoder has fewer hidden nodes than inputs, so that it must find
    what the inputs have in common. The output has no activation: the squared loss reads it as pixels, the
    binary one as log-odds.
    """

    def __init__(self, *, inputs: int = 64, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or inputs // 2
        if not 0 < hidden < inputs:
            raise ValueError(
                f"an auto-encoder has fewer hidden units than its {inputs} inputs; got hidden={hidden}"
            )
        self.encoder = nn.Linear(inputs, hidden)
        self.relu = nn.ReLU(inplace=True)
        self.decoder = nn.Linear(hidden, inputs)

    def forward(self, samples: Tensor) -> Tensor:
        """The samples given back, in their own shape."""
        code = self.relu(self.encoder(samples.flatten(1)))
        again: Tensor = self.decoder(code)
        return again.reshape(samples.shape)


class VAEOutput(NamedTuple):
    """The samples given back as log-odds, and the normal distributions of their codes."""

    logits: Tensor
    mean: Tensor
    log_variance: Tensor


class EvidenceBound(WithoutClasses):
    """The negative evidence lower bound, in nats a sample: what is lost, and what the code tells.

    The first is the criterion, summed over a sample's numbers; the second, the divergence of the code's
    distribution from the standard normal one.
    """

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        samples = batch[0]
        logits, mean, log_variance = network(samples)
        lost = self.criterion(logits, samples) * samples[0].numel()
        told = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(dim=1).mean()
        return StepLoss(loss=lost + told)


@network("vae", input=(64,), classes=0, data="digits", goal=EvidenceBound, parameters=9_936)
class VAE(nn.Module):
    """64 inputs, 64 hidden units, a code of 8 numbers and back: 9,936 parameters.

    4,160 for the encoder's hidden layer, 2·520 for mean and variance, 576 and 4,160 for the decoder. Codes
    are distributions, so that new samples can be drawn from them: Kingma and Welling, arXiv:1312.6114.
    """

    def __init__(self, *, inputs: int = 64, hidden: int = 64, code: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Linear(inputs, hidden)
        self.mean = nn.Linear(hidden, code)
        self.log_variance = nn.Linear(hidden, code)
        self.decoder = nn.Linear(code, hidden)
        self.output = nn.Linear(hidden, inputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, samples: Tensor) -> VAEOutput:
        """The samples by way of codes drawn from their distributions."""
        hidden = self.relu(self.encoder(samples.flatten(1)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        drawn = noise(len(mean), mean.shape[1], mean, repeatable=not self.training)
        logits = self.output(self.relu(self.decoder(mean + drawn * (0.5 * log_variance).exp())))
        return VAEOutput(logits.reshape(samples.shape), mean, log_variance)


@network("deconv", input=(1, 32, 32), classes=0, data="zener", goal=Reconstruction, parameters=33_393)
class Deconvolutional(nn.Module):
    """Three 4x4 convolutions that halve the image, three transposed ones that double it: 33,393 parameters.

    A convolution from i to o maps has 16·i·o + o parameters, either way: 272 + 8,224 + 8,208 down to a code
    of 16x4x4, a quarter of a card's pixels, and 8,224 + 8,208 + 257 up again. Zeiler et al., "Deconvolutional
    networks", CVPR 2010; as encoder and decoder in Noh et al., arXiv:1505.04366.
    """

    def __init__(self, *, channels: int = 1, maps: Sequence[int] = (16, 32, 16)) -> None:
        super().__init__()
        down = (channels, *maps)
        self.encoder = _stack("conv", nn.Conv2d, down)
        self.relu = nn.ReLU(inplace=True)
        self.decoder = _stack("deconv", nn.ConvTranspose2d, down[::-1])

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
