"""Labelled and unlabelled batches side by side: 2 epochs of 8 steps, with as many samples as are labelled."""

import torch
from common import batches, digest, mlp
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

torch.manual_seed(0)
network = mlp()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
unlabelled = DataLoader(batches(256, seed=1).dataset, batch_size=16)
for _epoch in range(2):
    for (inputs, labels), (others, _) in zip(batches(), unlabelled, strict=False):
        loss = cross_entropy(network(inputs), labels) + 0.1 * network(others).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(digest(network))
