"""Weight norm, spectral norm and orthogonality as parametrizations, modules that compute the weight.

16 steps; the layers are 0, 2, 4 and 5, as they are without the parametrizations.
"""

import torch
import torch.nn.functional as F
from common import batches, digest
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

torch.manual_seed(0)
loader = batches(128)
network = nn.Sequential(
    weight_norm(nn.Linear(16, 32)),
    nn.ReLU(),
    spectral_norm(nn.Linear(32, 32)),
    nn.ReLU(),
    orthogonal(nn.Linear(32, 32)),
    nn.Linear(32, 4),
)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for inputs, labels in loader:
    loss = F.cross_entropy(network(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(digest(network))
