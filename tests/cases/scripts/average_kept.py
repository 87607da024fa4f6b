"""An averaged copy (EMA) that is kept but never called: the network itself is validated.

It stays in eval mode afterwards, as in many scripts, so the mode does not tell training from validation.
3 epochs of 8 training steps, then 8 validation steps that sleep 20 ms each, as writing predictions would.
"""

import time

import torch
import torch.nn.functional as F
from common import batches, digest, mlp
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
network = mlp()
average = AveragedModel(network)
loader = batches()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for _epoch in range(3):
    for inputs, labels in loader:
        loss = F.cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(network)
    network.eval()
    average.eval()
    with torch.no_grad():
        for inputs, _labels in loader:
            network(inputs)
            time.sleep(0.02)
print(digest(average))
