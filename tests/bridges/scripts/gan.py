"""Two networks and two optimizers; `loader` as an argument draws the real batches from a DataLoader."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

maker = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
judge = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
make = torch.optim.Adam(maker.parameters())
judging = torch.optim.Adam(judge.parameters())
criterion = nn.BCEWithLogitsLoss()
if sys.argv[1:] == ["loader"]:
    batches = ((x,) for _ in range(2) for (x,) in DataLoader(TensorDataset(torch.randn(12, 8)), batch_size=3))
else:
    batches = ((torch.randn(3, 8),) for _ in range(8))
for (real,) in batches:
    fake = maker(torch.randn(3, 4))
    judging.zero_grad()
    criterion(judge(real), torch.ones(3, 1)).backward()  # two backward passes to one update
    criterion(judge(fake.detach()), torch.zeros(3, 1)).backward()
    judging.step()
    make.zero_grad()
    criterion(judge(fake), torch.ones(3, 1)).backward()
    make.step()
