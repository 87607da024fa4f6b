"""Recurrent networks that read a text character by character and tell the next one."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from laptime.training.networks.registry import network
from laptime.training.objectives import Batch, Objective, StepLoss

_CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM}


class NextCharacter(Objective):
    """Cross-entropy of the next character at each position, in nats a character.

    Where a batch has one target for each sample, only the last position is held against it.
    """

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        characters, following = batch
        scores = network(characters)
        scores = scores[:, -1] if following.dim() == 1 else scores.flatten(0, 1)
        targets = following.flatten()
        return StepLoss(loss=self.criterion(scores, targets), scores=scores.detach(), targets=targets)


_entry = partial(network, input=(64,), classes=256, ids=256, data="text", goal=NextCharacter)


@_entry("rnn", parameters=74_240, options={"cell": "rnn"})
@_entry("lstm", parameters=148_736, options={"cell": "lstm"})
class CharacterModel(nn.Module):
    """An embedding, a recurrent layer and a linear one: 74,240 parameters, 148,736 as an LSTM.

    256·64 for the embedding of bytes, 128·64 + 128·128 + 2·128 for the recurrence (four times that with the
    gates of an LSTM), 128·256 + 256 for the scores. Elman, Cognitive Science 14 (1990); Hochreiter and
    Schmidhuber, Neural Computation 9 (1997).
    """

    def __init__(
        self,
        *,
        num_classes: int = 256,
        cell: str = "lstm",
        embedding: int = 64,
        hidden: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if cell not in _CELLS:
            raise ValueError(f"cell is one of {', '.join(_CELLS)}; got {cell!r}")
        self.embedding = nn.Embedding(num_classes, embedding)
        self.recurrence = _CELLS[cell](embedding, hidden, layers, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, characters: Tensor) -> Tensor:
        """Scores of the next character at each position: (samples, positions, characters)."""
        states, _ = self.recurrence(self.embedding(characters))
        scores: Tensor = self.output(self.dropout(states))
        return scores
