"""Autocast, a gradient scaler and clipping, as in torch's own recipe: 16 steps, each with an update."""

import torch
import torch.nn.functional as F
from common import batches, digest, mlp

torch.manual_seed(0)
loader = batches(128)
network = mlp()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
for inputs, labels in loader:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(network(inputs), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(round(digest(network), 5))
