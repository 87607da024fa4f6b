"""Every family of operations that a sweep draws from, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from laptime.measure.sweep import convolving, moving, multiplying, normalizing, updating
from laptime.measure.sweep.case import Case
from laptime.measure.sweep.draw import Supply

Make = Callable[[Supply, torch.dtype], list[Case]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Operations of one kind, and of its backward pass where that has one."""

    name: str
    make: Make  # a random member, each way; raises TooLarge where the draw was unlucky
    share: int = 1  # of the draws of a round: more where shapes matter more
    low: bool = True  # also in bfloat16


FAMILIES = (
    Family(name="convolution", make=convolving.convolution, share=10),
    Family(name="pool", make=convolving.pool, share=2),
    Family(name="mm", make=multiplying.mm, share=6),
    Family(name="bmm", make=multiplying.bmm, share=2),
    Family(name="attention", make=multiplying.attention, share=2),
    Family(name="recurrent", make=multiplying.recurrent),
    Family(name="batch_norm", make=normalizing.batch_norm, share=2),
    Family(name="layer_norm", make=normalizing.layer_norm),
    Family(name="softmax", make=normalizing.softmax, share=2),
    Family(name="reduction", make=normalizing.reduction, share=3),
    Family(name="elementwise", make=moving.elementwise, share=6),
    Family(name="fill", make=moving.fill),
    Family(name="copy", make=moving.copy, share=2),
    Family(name="permuted", make=moving.permuted, share=2),
    Family(name="cat", make=moving.cat),
    Family(name="gather", make=moving.gather, low=False),
    Family(name="optimizer", make=updating.optimizer, low=False),
)
