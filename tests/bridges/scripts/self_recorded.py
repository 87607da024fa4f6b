"""Uses laptime itself."""

import sys

import torch
from common import Net, batch, train_step

import laptime

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if sys.argv[2:] == ["late"]:
    train_step(net, optimizer, *batch())
with laptime.record(net, optimizer, out=sys.argv[1]) as recording:
    for x, y in recording.steps([batch() for _ in range(3)]):
        train_step(net, optimizer, x, y)
