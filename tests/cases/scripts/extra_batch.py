"""A batch is drawn before each epoch to see its size, as in PyTorch's DDP tutorial: 3 epochs of 8 steps."""

import torch
import torch.nn.functional as F
from common import batches, digest, mlp

torch.manual_seed(0)
loader = batches(60)
network = mlp()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for _epoch in range(3):
    batch_size = len(next(iter(loader))[0])
    for inputs, labels in loader:
        loss = F.cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(digest(network))
