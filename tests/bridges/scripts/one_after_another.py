"""Four steps with one optimizer, then three with another that is made only then: LBFGS calls a closure."""

import sys

import torch
import torch.nn.functional as F
from common import Net, batch

net = Net()
x, y = batch()


def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    return loss


optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    closure()
    optimizer.step()
optimizer = getattr(torch.optim, sys.argv[1])(net.parameters())
for _ in range(3):
    if sys.argv[1] == "LBFGS":
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
