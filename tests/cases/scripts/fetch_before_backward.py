"""nanoGPT's order: the network returns the loss, and the next batch is fetched before backward.

12 steps; fetching takes 20 ms each time and is the host's work or waiting for data, not loss.
"""

import time

import torch
import torch.nn.functional as F
from common import digest, mlp
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, inputs, labels):
        return F.cross_entropy(self.body(inputs), labels)


torch.manual_seed(0)
network = Network()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
generator = torch.Generator().manual_seed(1)


def fetch():
    time.sleep(0.02)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)


inputs, labels = fetch()
for _step in range(12):
    loss = network(inputs, labels)
    loss = loss / 1  # to account for gradient accumulation
    inputs, labels = fetch()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(digest(network))
