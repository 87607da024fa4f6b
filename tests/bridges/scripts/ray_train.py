"""Two workers of Ray Train, on a cluster that the trainer starts by itself."""

import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train():
    net = prepare_model(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    data = TensorDataset(torch.randn(40, 8), torch.randint(2, (40,)))
    loader = prepare_data_loader(DataLoader(data, batch_size=4))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ray.train.report({"loss": loss.item()})


if __name__ == "__main__":
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
