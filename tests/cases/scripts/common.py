"""What the scripts share: a small labelled data set, a small network, and a digest of trained weights."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def batches(samples=64, seed=0):
    """Batches of 8 random vectors of 16 numbers, in 4 classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 16, generator=generator)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    return DataLoader(TensorDataset(inputs, labels), batch_size=8)


def mlp(inputs=16, hidden=32, classes=4):
    """Layers 0 and 2 are linear, 1 is a ReLU."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def digest(network):
    """One number that any difference in the trained weights changes."""
    return float(sum(p.detach().double().abs().sum() for p in network.parameters()))
