"""The noise that generative networks start from."""

from __future__ import annotations

import torch
from torch import Tensor


def noise(samples: int, size: int, like: Tensor, *, repeatable: bool) -> Tensor:
    """Rows of standard normal numbers, of the type and on the device of `like`.

    Repeatable noise is the same at every call and leaves the random state alone: validations can be compared
    with each other, and a training takes the same steps with and without them.
    """
    if not repeatable:
        return torch.randn(samples, size, device=like.device, dtype=like.dtype)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, size, generator=generator).to(like)
