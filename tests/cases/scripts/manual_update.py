"""A loop without optimizer and loader, as in a first lesson: the weights are changed by hand.

The argument says how many steps. At each fifth of them the number of objects and the memory in MiB go to
standard error; neither may grow.
"""

import gc
import resource
import sys

import torch
import torch.nn.functional as F
from common import mlp

steps = int(sys.argv[1])
torch.manual_seed(0)
network = mlp()
for step in range(steps):
    inputs = torch.randn(8, 16)
    labels = torch.randint(0, 4, (8,))
    network.zero_grad()
    loss = F.cross_entropy(network(inputs), labels)
    loss.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.01 * parameter.grad
    if (step + 1) % (steps // 5) == 0:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print("growth:", len(gc.get_objects()), memory, file=sys.stderr)
print(float(sum(p.detach().abs().sum() for p in network.parameters())))
