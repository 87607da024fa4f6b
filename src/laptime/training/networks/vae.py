"""A variational auto-encoder: codes are distributions, so that new samples can be drawn from them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from laptime.training.networks.autoencoder import between_numbers
from laptime.training.networks.noise import noise
from laptime.training.networks.registry import network
from laptime.training.objectives import Batch, Criterion, Objective, StepLoss


class VAEOutput(NamedTuple):
    """The samples given back as log-odds, and the normal distributions of their codes."""

    logits: Tensor
    mean: Tensor
    log_variance: Tensor


class EvidenceBound(Objective):
    """The negative evidence lower bound, in nats a sample: what is lost, and what the code tells.

    The first is the criterion, summed over a sample's numbers; the second, the divergence of the code's
    distribution from the standard normal one.
    """

    def __init__(self, criterion: Criterion | None = None) -> None:
        self.criterion = between_numbers(criterion, F.binary_cross_entropy_with_logits)

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        """The bound, averaged over the batch."""
        samples = batch[0]
        logits, mean, log_variance = network(samples)
        lost = self.criterion(logits, samples) * samples[0].numel()
        told = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(dim=1).mean()
        return StepLoss(loss=lost + told)


@network("vae", input=(64,), classes=0, data="digits", goal=EvidenceBound, parameters=9_936)
class VAE(nn.Module):
    """64 inputs, 64 hidden units, a code of 8 numbers and back: 9,936 parameters.

    4,160 for the encoder's hidden layer, 2·520 for mean and variance, 576 and 4,160 for the decoder. Kingma
    and Welling, "Auto-encoding variational Bayes", arXiv:1312.6114.
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
