"""Made-up batches, and a loss for whatever a network puts out. Notation of a sample: `[DTYPE:]SHAPE[@IDS]`.

3x224x224        float32 from a normal distribution
int64:128        128 token ids, below the size of the network's first embedding
int64:128@5000   … below 5000
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from laptime.errors import BadTarget

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from laptime.training.objectives import Objective

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
_SAMPLE = re.compile(r"(?:(?P<dtype>[a-z0-9]+):)?(?P<shape>\d+(?:x\d+)*)(?:@(?P<ids>\d+))?")
_LARGEST = 2**31  # elements of one sample; more is a typing error


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One input of a network, without the batch."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    ids: int | None = None

    def __str__(self) -> str:
        text = "x".join(map(str, self.shape))
        text = text if self.dtype == "float32" else f"{self.dtype}:{text}"
        return text if self.ids is None else f"{text}@{self.ids}"


def parse(text: str) -> Sample:
    """A sample from its notation; ValueError says what is wrong with it."""
    match = _SAMPLE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a shape such as 3x224x224, or int64:128 for token ids")
    shape = tuple(int(size) for size in match["shape"].split("x"))
    dtype = match["dtype"] or ("int64" if match["ids"] else "float32")
    ids = int(match["ids"]) if match["ids"] else None
    if dtype not in DTYPES:
        raise ValueError(f"{dtype!r} is not one of {', '.join(DTYPES)}")
    if 0 in shape or prod(shape) > _LARGEST:
        raise ValueError(f"{text!r} has no elements, or too many")
    if ids is not None and (ids < 1 or not dtype.startswith("int")):
        raise ValueError(f"{text!r}: @ gives the number of token ids, for int64 or int32")
    return Sample(shape=shape, dtype=dtype, ids=ids)


def batch(sample: Sample, size: int, network: nn.Module, device: torch.device) -> Tensor:
    """A batch of made-up samples on the device."""
    import torch

    dtype: torch.dtype = getattr(torch, sample.dtype)
    shape = (size, *sample.shape)
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    below = 2 if dtype == torch.bool else sample.ids or _embedding_size(network)
    return torch.randint(below, shape, device=device).to(dtype)


def _embedding_size(network: nn.Module) -> int:
    """Token embeddings come first in every network we know; positions and token types after them."""
    from torch import nn

    sizes = [module.num_embeddings for module in network.modules() if isinstance(module, nn.Embedding)]
    return sizes[0] if sizes else 2


def first_tensor(output: Any) -> Tensor | None:
    """The first floating-point tensor of an output: `logits` if it has that, else in order."""
    import torch

    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    logits = getattr(output, "logits", None)
    if logits is not None and (tensor := first_tensor(logits)) is not None:
        return tensor
    if isinstance(output, Mapping):
        parts = list(output.values())
    elif isinstance(output, list | tuple):
        parts = list(output)
    else:
        parts = list(getattr(output, "__dict__", {}).values())
    return next((tensor for tensor in map(first_tensor, parts) if tensor is not None), None)


def loss(output: Any) -> Tensor:
    """Cross-entropy of the output against class 0.

    Classes are the last dimension of (batch, classes) and (batch, positions, classes), the second of images.
    A single number is taken for a loss; one number per sample, for an error to be squared.
    """
    from torch.nn import functional as F

    scores = first_tensor(output)
    if scores is None:
        raise BadTarget(
            f"the network's output, a {type(output).__name__}, holds no tensor of floating-point numbers"
        )
    if scores.dim() == 0:
        return scores
    if scores.dim() == 1:
        return scores.float().square().mean()
    if scores.dim() == 3:
        scores = scores.flatten(0, 1)
    target = scores.new_zeros((scores.shape[0], *scores.shape[2:])).long()
    return F.cross_entropy(scores.float(), target)


def objective() -> Objective:
    """Any network, trained to put out class 0."""
    from laptime.training import objectives

    class MadeUp(objectives.Objective):
        def judge(self, network: nn.Module, batch: objectives.Batch) -> objectives.StepLoss:
            return objectives.StepLoss(loss=loss(network(*batch)))

    return MadeUp()
