"""A generative adversarial network: a generator against a discriminator."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from laptime.training.networks.autoencoder import noise
from laptime.training.networks.registry import network
from laptime.training.objectives import Batch, Moment, StepLoss, WithoutClasses

Want = Literal["scores", "discriminator", "generator", "images"]


def energy_distance(left: Tensor, right: Tensor) -> Tensor:
    """How far apart two sets of samples are as distributions: 0 if and only if they are the same.

    Twice the mean distance between the sets, less the mean distances within them: Székely and Rizzo (2013).
    """
    left, right = left.flatten(1).float(), right.flatten(1).float()
    between, within = torch.cdist(left, right), (torch.cdist(left, left), torch.cdist(right, right))
    return 2 * between.mean() - within[0].mean() - within[1].mean()


class Adversarial(WithoutClasses):
    """Two losses a step: the discriminator's, then the generator's against the discriminator just updated.

    The squared loss makes it a least-squares GAN. Validation looks at the images, not at the contest: the
    energy distance between the real and as many generated ones.
    """

    def groups(self, network: nn.Module) -> dict[str, list[nn.Parameter]]:
        players = ("discriminator", "generator")
        return {player: list(network.get_submodule(player).parameters()) for player in players}

    def parts(self, network: nn.Module, batch: Batch, moment: Moment) -> Iterator[StepLoss]:
        """Real images should score 1 and made ones 0, says the discriminator; the generator wants a 1."""
        real, made = network(batch[0], want="discriminator")
        loss = self.criterion(real, torch.ones_like(real)) + self.criterion(made, torch.zeros_like(made))
        yield StepLoss(loss=loss / 2, group="discriminator")
        made = network(batch[0], want="generator")
        yield StepLoss(loss=self.criterion(made, torch.ones_like(made)), group="generator")

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        return StepLoss(loss=energy_distance(batch[0], network(batch[0], want="images")))


@network("gan", input=(1, 8, 8), classes=0, data="digits", goal=Adversarial, parameters=281_666)
class GAN(nn.Module):
    """A small DCGAN: 148,865 parameters in the generator and 132,801 in the discriminator, for 8x8 images.

    Goodfellow et al., arXiv:1406.2661; strided and transposed 4x4 convolutions, batch norm in the generator
    and leaky ReLU as in Radford et al., arXiv:1511.06434. The discriminator has no batch norm: it would tell
    a batch of real images from a batch of made ones by their mean.
    """

    def __init__(self, *, size: int = 8, channels: int = 1, code: int = 32, width: int = 64) -> None:
        super().__init__()
        if size % 4:
            raise ValueError(
                f"the generator doubles its images twice, so size is a multiple of 4; got {size}"
            )
        small = size // 4
        self.code = code
        self.generator = _named(
            fc=nn.Linear(code, 2 * width * small * small, bias=False),
            unflatten=nn.Unflatten(1, (2 * width, small, small)),
            bn1=nn.BatchNorm2d(2 * width),
            relu1=nn.ReLU(inplace=True),
            deconv1=nn.ConvTranspose2d(2 * width, width, kernel_size=4, stride=2, padding=1, bias=False),
            bn2=nn.BatchNorm2d(width),
            relu2=nn.ReLU(inplace=True),
            deconv2=nn.ConvTranspose2d(width, channels, kernel_size=4, stride=2, padding=1),
            sigmoid=nn.Sigmoid(),  # pixels are between 0 and 1 in all our data
        )
        self.discriminator = _named(
            conv1=nn.Conv2d(channels, width, kernel_size=4, stride=2, padding=1),
            relu1=nn.LeakyReLU(0.2, inplace=True),
            conv2=nn.Conv2d(width, 2 * width, kernel_size=4, stride=2, padding=1),
            relu2=nn.LeakyReLU(0.2, inplace=True),
            flatten=nn.Flatten(),
            fc=nn.Linear(2 * width * small * small, 1),
        )

    def forward(self, real: Tensor, *, want: Want = "scores") -> Tensor | tuple[Tensor, Tensor]:
        """Scores of as many made images as real ones are given, with gradients for both players.

        What else can be wanted: for the "discriminator", scores of real and of made images, with gradients
        for it alone; for the "generator", scores of made images, with gradients for it alone; made "images".
        """
        code = noise(len(real), self.code, real, repeatable=not self.training)
        if want == "discriminator":
            with torch.no_grad():
                false = self.generator(code)
            # One call for both, so that it costs one; without batch norm they do not see each other.
            real_scores, made_scores = self.discriminator(torch.cat([real, false])).chunk(2)
            return real_scores, made_scores
        made: Tensor = self.generator(code)
        if want == "images":
            return made
        self.discriminator.requires_grad_(want != "generator")
        try:
            scores: Tensor = self.discriminator(made)
        finally:
            self.discriminator.requires_grad_(True)
        return scores


def _named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))
