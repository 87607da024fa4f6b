"""One batch, over and over."""

import torch
from common import Net, data, train_step
from torch.utils.data import DataLoader

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = next(iter(DataLoader(data(8), batch_size=8)))
for _ in range(7):
    train_step(net, optimizer, x, y)
