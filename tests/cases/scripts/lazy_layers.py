"""Lazy layers, which take their shapes from a first call that trains nothing: 8 steps, layers 0 and 2."""

import torch
import torch.nn.functional as F
from common import batches, digest
from torch import nn

torch.manual_seed(0)
loader = batches()
network = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(4))
network(torch.randn(2, 16))
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for inputs, labels in loader:
    loss = F.cross_entropy(network(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(digest(network))
