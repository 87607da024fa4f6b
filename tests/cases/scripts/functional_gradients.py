"""Gradients by torch.func, without backward and optimizer; then per-sample gradients by vmap. 8 batches."""

import torch
import torch.nn.functional as F
from common import batches, mlp
from torch.func import functional_call, grad_and_value, vmap

torch.manual_seed(0)
loader = batches()
network = mlp()
weights = {name: p.detach() for name, p in network.named_parameters()}


def loss_of(weights, inputs, labels):
    return F.cross_entropy(functional_call(network, weights, (inputs,)), labels)


def loss_of_one(weights, inputs, label):
    return loss_of(weights, inputs[None], label[None])


for inputs, labels in loader:
    gradients, _loss = grad_and_value(loss_of)(weights, inputs, labels)
    weights = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0))(weights, inputs, labels)
print(float(sum(weight.abs().sum() for weight in weights.values())))
