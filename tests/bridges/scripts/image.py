"""The network is frozen; what is trained is its input."""

import torch
from common import Net

net = Net().eval().requires_grad_(False)
image = torch.randn(4, 8, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    net(image).square().sum().backward()
    optimizer.step()
