"""Sparse gradients, accumulated over two calls without a DataLoader: 6 updates, layers embedding and head."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 8, sparse=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.embedding(x))


torch.manual_seed(0)
network = Network()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for _update in range(6):
    optimizer.zero_grad()
    for _batch in range(2):
        loss = network(torch.randint(0, 100, (8,))).pow(2).mean()
        loss.backward()
    optimizer.step()
print(float(sum(p.detach().abs().sum() for p in network.parameters())))
