"""`torch.compile(net)` or `net.compile()`, as its argument says."""

import sys

import torch
from common import Net, batch, train_step

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if sys.argv[1] == "wrapped":
    net = torch.compile(net, backend="aot_eager")
else:
    net.compile(backend="aot_eager")
for _ in range(5):
    train_step(net, optimizer, *batch())
print(torch._dynamo.utils.counters["stats"]["unique_graphs"], "graphs")
