"""What each layer of a network costs on a device, before it has run there: for cutting it into stages."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

from laptime.errors import LaptimeError
from laptime.estimate import device_speed
from laptime.hardware.lookup import gpu_in
from laptime.recorder.backends import backend_of
from laptime.training.objectives import Batch, Objective
from laptime.training.prediction_target import NetworkOptions, prediction_target

# Of a device that nothing is known of: only their ratio matters, that of a processor core.
FLOPS_PER_S, BYTES_PER_S = 50e9, 10e9


def layer_costs(
    network: nn.Module, objective: Objective, sample: Batch, device: torch.device
) -> dict[str, float]:
    """Seconds of a step by layer: predicted where the device is known, else by operations and bytes."""
    options = NetworkOptions(example=sample, loss=lambda net, batch: objective.judge(net, batch).loss)
    target = prediction_target(network, options)
    try:
        if backend_of(device).accelerator:
            known = gpu_in(torch.cuda.get_device_name(device))
        else:
            known = device_speed.device("cpu")
        made = target.predict(target.batch, [known])[0]
        return {layer.layer: layer.total_s for layer in made.layers()}
    except LaptimeError:
        costs: dict[str, float] = defaultdict(float)
        for operation in target.read(target.batch).operations:
            costs[operation.layer] += operation.flops / FLOPS_PER_S + operation.moved / BYTES_PER_S
        return dict(costs)
