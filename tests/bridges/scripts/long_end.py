"""Training, then something that takes longer: a plot, an export."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,))), batch_size=8)
for inputs, labels in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(inputs), labels).backward()
    optimizer.step()
time.sleep(0.5)
