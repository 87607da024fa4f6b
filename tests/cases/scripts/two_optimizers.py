"""Two optimizers, the second stepping at every other batch: 8 steps an epoch, 2 epochs."""

import torch
import torch.nn.functional as F
from common import batches, digest, mlp

torch.manual_seed(0)
loader = batches()
network = mlp()
often = torch.optim.SGD(network[0].parameters(), 0.1)
seldom = torch.optim.Adam(network[2].parameters(), 0.01)
for _epoch in range(2):
    for number, (inputs, labels) in enumerate(loader):
        loss = F.cross_entropy(network(inputs), labels)
        often.zero_grad()
        seldom.zero_grad()
        loss.backward()
        often.step()
        if number % 2:
            seldom.step()
print(digest(network))
