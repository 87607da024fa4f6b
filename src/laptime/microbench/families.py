"""Every family of operations that a sweep draws from, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from laptime.microbench import convolutions, matrix_products, memory_bound, norms, updates
from laptime.microbench.case import Case
from laptime.microbench.random_sizes import Supply

Make = Callable[[Supply, torch.dtype], list[Case]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Operations of one kind, and of its backward pass where that has one."""

    name: str
    make: Make  # a random member, each way; raises TooLarge where the draw was unlucky
    share: int = 1  # of the draws of a round: more where shapes matter more
    low: bool = True  # also in bfloat16


FAMILIES = (
    Family(name="convolution", make=convolutions.convolution, share=10),
    Family(name="pool", make=convolutions.pool, share=2),
    Family(name="mm", make=matrix_products.mm, share=6),
    Family(name="bmm", make=matrix_products.bmm, share=2),
    Family(name="attention", make=matrix_products.attention, share=2),
    Family(name="recurrent", make=matrix_products.recurrent),
    Family(name="batch_norm", make=norms.batch_norm, share=2),
    Family(name="layer_norm", make=norms.layer_norm),
    Family(name="softmax", make=norms.softmax, share=2),
    Family(name="reduction", make=norms.reduction, share=3),
    Family(name="elementwise", make=memory_bound.elementwise, share=6),
    Family(name="fill", make=memory_bound.fill),
    Family(name="copy", make=memory_bound.copy, share=2),
    Family(name="permuted", make=memory_bound.permuted, share=2),
    Family(name="cat", make=memory_bound.cat),
    Family(name="gather", make=memory_bound.gather, low=False),
    Family(name="optimizer", make=updates.optimizer, low=False),
)
