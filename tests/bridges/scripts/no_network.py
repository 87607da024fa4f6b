"""Calls nothing that could be recorded."""

import torch

print(torch.ones(3).sum().item())
