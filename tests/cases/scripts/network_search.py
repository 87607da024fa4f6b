"""20 networks, one after the other, each with its optimizer and 2 updates: none outlives its turn."""

import gc
import weakref

import torch
from common import digest, mlp
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
inputs, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
made, total = [], 0.0
for trial in range(20):
    network = mlp(hidden=8 + trial)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _update in range(2):
        loss = cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total += digest(network)
    made += [weakref.ref(network), weakref.ref(optimizer)]
    del network, optimizer, loss
    gc.collect()
print(sum(one() is not None for one in made), total)
