"""One network is trained, then another; the first has been tried for its shapes before."""

import torch
from common import Net, batch, data, train_step
from torch.utils.data import DataLoader


def fit(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        train_step(net, optimizer, x, y)


first = Net()
with torch.no_grad():
    print(first.features(torch.zeros(1, 8)).shape[1], "features")
fit(first, DataLoader(data(24), batch_size=6))
fit(Net(32), [batch() for _ in range(5)])
