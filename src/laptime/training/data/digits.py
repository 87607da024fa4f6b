"""Scikit-learn's handwritten digits: 1797 grey images of 8x8 pixels, real data that needs no download."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from laptime.errors import MissingExtra
from laptime.training.data import Data, NetworkInput
from laptime.training.data.kinds import DigitsData
from laptime.training.data.subset import divided
from laptime.training.data.tensors import Tensors, shaped

_SPLIT = 0  # the held-out digits are the same in every training


def open_data(config: DigitsData, wanted: NetworkInput) -> Data:
    """The digits with ink 1 on paper 0, a share of each class held out, as large as the network wants."""
    images, labels = _digits()
    form = {None: wanted.input, True: (64,), False: (1, 8, 8)}[config.flat]
    images = _grown(images, form)
    held = divided(labels, config.validation_share, seed=_SPLIT)

    def those(chosen: Tensor) -> Tensors:
        return Tensors(shaped(images[chosen], form), labels[chosen])

    return Data(
        train=those(~held),
        validation=those(held) if held.any() else None,
        classes=tuple("0123456789"),
        facts={"source": "sklearn.datasets.load_digits"},
    )


def _digits() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("scikit-learn", "digits") from None
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div_(16)  # 4-bit ink, 16 where it is full
    return images[:, None], torch.from_numpy(digits.target).long()


def _grown(images: Tensor, wanted: tuple[int, ...] | None) -> Tensor:
    """The images at the size that the network takes; rows of a square number are images laid flat."""
    if wanted is None:
        return images
    side = math.isqrt(wanted[0])
    size = wanted[-2:] if len(wanted) > 1 else (side, side)
    if size == tuple(images.shape[-2:]) or (len(wanted) == 1 and side * side != wanted[0]):
        return images
    return F.interpolate(images, size, mode="bilinear", align_corners=False)
