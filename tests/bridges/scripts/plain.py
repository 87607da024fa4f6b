"""A loop as most are: loaders with workers, validation in each epoch, a scheduler, arguments, a guard."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Net, data, train_step
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    assert Path(__file__).name == "plain.py"
    keep = options.workers > 0
    train = DataLoader(data(22), batch_size=6, num_workers=options.workers, persistent_workers=keep)
    valid = DataLoader(data(10), batch_size=5)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(options.epochs):
        net.train()
        for x, y in train:
            train_step(net, optimizer, x, y)
        net.eval()
        with torch.no_grad():
            for x, y in valid:
                F.cross_entropy(net(x), y)
        scheduler.step()
        print(f"epoch {epoch} done")


if __name__ == "__main__":
    main()
