"""The update of parameters: SGD with momentum, as torch runs it on the device by default."""

from __future__ import annotations

import torch
from torch import nn

from laptime.microbench.case import Case
from laptime.microbench.families import family
from laptime.microbench.random_sizes import Supply
from laptime.ops.optimizers import OPTIMIZERS, update_operation

_MOMENTUM = OPTIMIZERS["momentum"]


@family(low=False)
def optimizer(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """All tensors of a network, most of them small, at once."""
    draw = supply.draw
    tensors = draw.between(1, 200)
    count = draw.between(tensors * 16, max(tensors * 32, supply.most))
    supply.check(elements=float(_MOMENTUM.passes * count))
    shares = [draw.random.paretovariate(0.6) for _ in range(tensors)]
    sizes = [max(1, int(count * share / sum(shares))) for share in shares]
    parameters = [nn.Parameter(supply.own((size,), dtype)) for size in sizes]
    for parameter in parameters:
        parameter.grad = supply.take(parameter.shape, dtype)
    chosen = torch.optim.SGD(parameters, lr=1e-9, momentum=0.9)
    chosen.step()  # makes the momentum
    whole = sum(sizes)
    return [Case(call=chosen.step, known=update_operation(_MOMENTUM, whole, tensors, 4 * whole))]
