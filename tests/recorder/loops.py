"""What the tests of recordings share: a small loop, and what there is to see afterwards."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from laptime.recorder.recorder import active_recording
from laptime.recorder.torch_patches import is_watched


class Net(nn.Module):
    """Two layers and something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        return self.last(F.relu(self.norm(self.first(x))))


class Tick(nn.Module):
    """Lets a fake clock advance during a layer's forward pass."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, x):
        self.clock.advance(self.seconds)
        return x


def batches(count=4, size=6):
    return [(torch.randn(size, 8), torch.randint(0, 5, (size,))) for _ in range(count)]


def train_step(network, optimizer, batch):
    x, y = batch
    loss = F.cross_entropy(network(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def sgd(network):
    return torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)


def rows(run, **wanted):
    return [
        row for row in run.layer_table.to_pylist() if all(row[key] == value for key, value in wanted.items())
    ]


def hooks(network):
    return sum(
        is_watched(module) + len(module._forward_pre_hooks) + len(module._forward_hooks)
        for module in network.modules()
    )


def torch_is_untouched():
    return (
        active_recording() is None
        and "to" not in vars(torch.Tensor)
        and "__call__" not in vars(nn.modules.loss._Loss)
        and F.cross_entropy.__module__ == "torch.nn.functional"
        and not hasattr(F.cross_entropy, "__wrapped__")
        and not hasattr(torch.autograd._engine_run_backward, "__wrapped__")
        and not _global_optimizer_pre_hooks
    )
