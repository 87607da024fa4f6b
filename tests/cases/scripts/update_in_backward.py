"""One optimizer per parameter, stepped by a hook inside backward as soon as its gradient is there.

16 steps, each with the updates of all 6 parameters; an update inside backward is update time.
"""

import torch
import torch.nn.functional as F
from common import batches, digest
from torch import nn

torch.manual_seed(0)
loader = batches(128)
network = nn.Sequential(nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))
optimizers = {p: torch.optim.Adam([p], lr=0.01) for p in network.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in network.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for inputs, labels in loader:
    F.cross_entropy(network(inputs), labels).backward()
print(digest(network))
