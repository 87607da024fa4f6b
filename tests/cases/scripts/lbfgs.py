"""L-BFGS calls forward and backward several times from inside its step: 8 steps, an update each."""

import torch
import torch.nn.functional as F
from common import batches, digest, mlp

torch.manual_seed(0)
loader = batches()
network = mlp()
optimizer = torch.optim.LBFGS(network.parameters(), lr=0.5, max_iter=4)
for inputs, labels in loader:

    def closure(inputs=inputs, labels=labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(inputs), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
print(digest(network))
