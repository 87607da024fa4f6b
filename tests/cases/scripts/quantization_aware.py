"""Quantisation-aware training, which swaps the layers for its own kinds: 16 steps, layers a and b.

Afterwards the network is converted, which must still work.
"""

import warnings

import torch
import torch.ao.quantization as quantization
import torch.nn.functional as F
from common import batches, digest
from torch import nn

warnings.simplefilter("ignore")  # torch's own quantisation is deprecated


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.quantize = quantization.QuantStub()
        self.a = nn.Linear(16, 32)
        self.relu = nn.ReLU()
        self.b = nn.Linear(32, 4)
        self.restore = quantization.DeQuantStub()

    def forward(self, x):
        return self.restore(self.b(self.relu(self.a(self.quantize(x)))))


torch.manual_seed(0)
network = Network().train()
network.qconfig = quantization.get_default_qat_qconfig("fbgemm")
quantization.prepare_qat(network, inplace=True)
loader = batches(128)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for inputs, labels in loader:
    loss = F.cross_entropy(network(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = digest(network)
network.eval()
converted = quantization.convert(network)
print(type(converted.a).__module__, tuple(converted(inputs).shape), weights)
