"""A loader whose worker is spawned, so that it imports this script again: 4 steps, then exit status 3."""

import sys

import torch
import torch.nn.functional as F
from common import digest, mlp
from torch.utils.data import DataLoader, Dataset


class Vectors(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.randn(16, generator=torch.Generator().manual_seed(index)), index % 4


def main():
    torch.manual_seed(0)
    network = mlp()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for inputs, labels in DataLoader(Vectors(), batch_size=8, num_workers=1, multiprocessing_context="spawn"):
        loss = F.cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(digest(network))
    sys.exit(3)


if __name__ == "__main__":
    main()
