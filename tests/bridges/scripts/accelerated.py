"""A loop around accelerate, which draws one batch ahead and accumulates gradients."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from common import Net, data
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
train, valid = DataLoader(data(22), batch_size=6), DataLoader(data(10), batch_size=5)
net, optimizer, train, valid = accelerator.prepare(net, optimizer, train, valid)
for _ in range(2):
    net.train()
    for x, y in train:
        with accelerator.accumulate(net):
            accelerator.backward(F.cross_entropy(net(x), y))
            optimizer.step()
            optimizer.zero_grad()
    net.eval()
    for x, _ in valid:
        with torch.no_grad():
            net(x)
