"""Activation checkpointing of both kinds: the blocks' forward runs again inside backward.

12 steps. The second forward is backward time of the block's own layers.
"""

import torch
import torch.nn.functional as F
from common import digest
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width * 4)
        self.down = nn.Linear(width * 4, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(128) for _ in range(3)])
        self.stem = nn.Linear(16, 128)
        self.head = nn.Linear(128, 4)

    def forward(self, x):
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=number == 1)
        return self.head(x)


generator = torch.Generator().manual_seed(0)
inputs = torch.randn(128, 16, generator=generator)
labels = torch.randint(0, 4, (128,), generator=generator)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32)
network = Network()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for _epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(digest(network))
