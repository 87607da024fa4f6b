"""One batch over and over, evaluated after each update without `.eval()`, then plotted for 30 ms.

8 training steps, each followed by a validation step. Plotting is the host's time.
"""

import time

import torch
import torch.nn.functional as F
from common import digest, mlp

torch.manual_seed(0)
network = mlp()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(8, 16, generator=generator)
labels = torch.randint(0, 4, (8,), generator=generator)
for _step in range(8):
    loss = F.cross_entropy(network(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        outputs = network(inputs)
        held_out_loss = F.cross_entropy(outputs, labels)
    time.sleep(0.03)  # plotting
print(digest(network))
