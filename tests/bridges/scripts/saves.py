"""Saves the whole network in the middle of its training, averages a copy of it, and validates by hand."""

import copy
import sys

import torch
from common import Net, data, train_step
from torch.utils.data import DataLoader

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number, (x, y) in enumerate(DataLoader(data(24), batch_size=6)):
    train_step(net, optimizer, x, y)
    if number == 1:
        torch.save(net, sys.argv[1])
        average = copy.deepcopy(net)
net.eval()
with torch.no_grad():
    net(torch.randn(5, 8))
