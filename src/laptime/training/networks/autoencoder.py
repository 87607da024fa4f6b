"""An auto-encoder: gives its input back through a layer that is narrower than it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from laptime.errors import ConfigError
from laptime.training.networks.registry import network
from laptime.training.objectives import Criterion, Objective, Reconstruction


def reconstruction(criterion: Criterion | None) -> Objective:
    """The goal of networks that give their input back."""
    return Reconstruction(between_numbers(criterion, F.mse_loss))


def between_numbers(criterion: Criterion | None, usual: Criterion) -> Criterion:
    """The loss asked for, if it compares numbers with numbers; cross-entropy needs classes."""
    if criterion is F.cross_entropy:
        raise ConfigError(
            "loss.name = 'cross-entropy' needs classes, and this network has none; "
            "use 'squared' or 'binary-cross-entropy', or leave it out"
        )
    return usual if criterion is None else criterion


@network("autoencoder", input=(64,), classes=0, data="digits", goal=reconstruction, parameters=4_192)
class AutoEncoder(nn.Module):
    """Half as many hidden units as inputs: 64·32 + 32 + 32·64 + 64 = 4,192 parameters.

    Document C: an auto-encoder has fewer hidden nodes than inputs, so that it must find what the inputs have
    in common. The output has no activation: the squared loss reads it as pixels, the binary one as log-odds.
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
