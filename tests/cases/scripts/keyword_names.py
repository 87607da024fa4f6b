"""Keyword arguments with names that a wrapper may use itself. 8 steps."""

import torch
from common import batches, digest
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 4)

    def forward(self, inputs, module=None, original=None, args=None, kwargs=None):
        return module * self.body(inputs)


class Criterion(nn.CrossEntropyLoss):
    def forward(self, outputs, labels, module=1.0, original=None, args=None, kwargs=None):
        return module * super().forward(outputs, labels)


torch.manual_seed(0)
network, criterion = Network(), Criterion()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for inputs, labels in batches():
    outputs = network(inputs=inputs, module=2.0, original=1, args=2, kwargs=3)
    loss = criterion(outputs, labels, module=0.5, original=1, args=2, kwargs=3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(digest(network))
