"""A graph network of PyTorch Geometric, whose batches join 8 graphs into one: 8 steps an epoch, 2 epochs."""

import random
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

warnings.simplefilter("ignore")
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
data = FakeDataset(num_graphs=64, avg_num_nodes=20, num_channels=16, num_classes=4, task="graph")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GCNConv(16, 32)
        self.second = GCNConv(32, 32)
        self.head = nn.Linear(32, data.num_classes)

    def forward(self, graphs):
        x = self.first(graphs.x, graphs.edge_index).relu()
        x = self.second(x, graphs.edge_index).relu()
        return self.head(global_mean_pool(x, graphs.batch))


network = Network()
optimizer = torch.optim.Adam(network.parameters(), 0.01)
for _epoch in range(2):
    for graphs in DataLoader(data, batch_size=8, shuffle=True):
        loss = F.cross_entropy(network(graphs), graphs.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(round(float(sum(p.detach().abs().sum() for p in network.parameters())), 4))
