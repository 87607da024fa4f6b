"""Networks that give nothing, a generator, a data class. 16 steps."""

from dataclasses import dataclass

import torch
from common import batches, digest
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass
class Output:
    logits: Tensor
    loss: Tensor


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 8)

    def forward(self, inputs):
        self.state = self.first(inputs)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, state):
        for block in self.blocks:
            state = torch.relu(block(state))
            yield state


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 4)

    def forward(self, state, labels):
        logits = self.last(state)
        return Output(logits, cross_entropy(logits, labels))


torch.manual_seed(0)
parts = nn.ModuleList([Encoder(), Blocks(), Head()])
encoder, blocks, head = parts
optimizer = torch.optim.SGD(parts.parameters(), 0.1)
for inputs, labels in batches(128):
    encoder(inputs)
    output = head(sum(blocks(encoder.state)), labels)
    optimizer.zero_grad()
    output.loss.backward()
    optimizer.step()
print(digest(parts))
