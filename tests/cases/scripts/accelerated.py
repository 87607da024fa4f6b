"""Accelerate with gradient accumulation: it draws one batch ahead and wraps network, optimizer and loaders.

16 training steps an epoch with an update every second one, then 4 validation steps; 2 epochs.
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from common import batches, digest, mlp

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
network = mlp()
optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
network, optimizer, loader, held_out, scheduler = accelerator.prepare(
    network, optimizer, batches(128), batches(32, seed=1), scheduler
)
for _epoch in range(2):
    network.train()
    for inputs, labels in loader:
        with accelerator.accumulate(network):
            loss = F.cross_entropy(network(inputs), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    network.eval()
    for inputs, labels in held_out:
        with torch.no_grad():
            outputs = network(inputs)
        accelerator.gather_for_metrics((outputs, labels))
print(round(digest(network), 5))
