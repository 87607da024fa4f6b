"""A training inside of `main()`: its network and optimizer are gone when the script ends."""

import torch
from torch import nn


def main():
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(network.parameters())
    for _ in range(6):
        loss = network(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
