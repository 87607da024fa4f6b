"""torch.compile in six places: the network, in place, a layer, the loss function, the whole step, or nowhere.

16 steps. What is compiled is one unit that says so; what is not keeps its layers.
"""

import sys

import torch
import torch.nn.functional as F
from common import batches, digest, mlp

where, backend = sys.argv[1:]
torch.manual_seed(0)
loader = batches(128)
network = mlp()
called = network
if where == "network":
    called = torch.compile(network, backend=backend)
if where == "in place":
    network.compile(backend=backend)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
if where == "layer":
    network[0] = torch.compile(network[0], backend=backend)


def loss_of(inputs, labels):
    return F.cross_entropy(called(inputs), labels)


if where == "loss":
    loss_of = torch.compile(loss_of, backend=backend)


def step(inputs, labels):
    loss = loss_of(inputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if where == "step":
    step = torch.compile(step, backend=backend)
for inputs, labels in loader:
    step(inputs, labels)
print(round(digest(network), 4))
