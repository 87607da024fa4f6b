"""The deprecated weight and spectral norm, which set the weight in a hook before each forward.

16 steps; the layers are 0 and 2, as they are without the norms.
"""

import warnings

import torch
import torch.nn.functional as F
from common import batches, digest
from torch import nn

warnings.simplefilter("ignore")  # both norms are deprecated
torch.manual_seed(0)
loader = batches(128)
network = nn.Sequential(
    nn.utils.weight_norm(nn.Linear(16, 32)),
    nn.ReLU(),
    nn.utils.spectral_norm(nn.Linear(32, 4)),
)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for inputs, labels in loader:
    loss = F.cross_entropy(network(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(digest(network))
