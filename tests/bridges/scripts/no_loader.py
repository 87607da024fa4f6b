"""Batches made by a function, and an evaluation of several batches now and then, as nanoGPT does."""

import torch
import torch.nn.functional as F
from common import Net, batch

net = Net()
optimizer = torch.optim.AdamW(net.parameters())


@torch.no_grad()
def estimate_loss():
    net.eval()
    losses = []
    for _ in range(3):
        x, y = batch()
        losses.append(F.cross_entropy(net(x), y).item())
    net.train()
    return sum(losses) / 3


for iteration in range(6):
    if iteration % 3 == 0:
        estimate_loss()
    x, y = batch()
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
