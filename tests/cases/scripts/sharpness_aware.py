"""Sharpness-aware minimisation: an optimizer around another, two passes there and back a batch. 8 steps."""

import torch
from common import batches, digest, mlp
from torch.nn.functional import cross_entropy


class SharpnessAware(torch.optim.Optimizer):
    def __init__(self, parameters, base, **defaults):
        super().__init__(parameters, defaults)
        self.base = base(self.param_groups, **defaults)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["before"] = parameter.clone()
            parameter.add_(0.05 * parameter.grad)
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter]["before"])
        self.base.step()
        self.zero_grad()


torch.manual_seed(0)
network = mlp()
optimizer = SharpnessAware(network.parameters(), torch.optim.SGD, lr=0.1)
for inputs, labels in batches():
    cross_entropy(network(inputs), labels).backward()
    optimizer.climb()
    cross_entropy(network(inputs), labels).backward()
    optimizer.descend()
print(digest(network))
