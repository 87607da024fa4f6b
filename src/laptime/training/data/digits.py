"""Scikit-learn's handwritten digits: 1797 grey images of 8x8 pixels, real data that needs no download."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from laptime.errors import MissingExtra
from laptime.training.data import Data, NetworkInput
from laptime.training.data.datasets import Tensors, divided, shaped
from laptime.training.data.kinds import DigitsData

_SPLIT = 0  # the held-out digits are the same in every training


def open_data(config: DigitsData, wanted: NetworkInput) -> Data:
    """The digits with ink 1 on paper 0, a share of each class held out, as large as the network wants."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("scikit-learn", "digits") from None
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div_(16)[:, None]  # 4-bit ink, 16 where it is full
    labels = torch.from_numpy(digits.target).long()
    form = {None: wanted.input, True: (64,), False: (1, 8, 8)}[config.flat]
    size = _image_size(form)
    if size is not None and size != (8, 8):
        images = F.interpolate(images, size, mode="bilinear", align_corners=False)
    held = divided(labels, config.validation_share, seed=_SPLIT)
    return Data(
        train=Tensors(shaped(images[~held], form), labels[~held]),
        validation=Tensors(shaped(images[held], form), labels[held]) if held.any() else None,
        classes=tuple("0123456789"),
        facts={"source": "sklearn.datasets.load_digits"},
    )


def _image_size(form: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Height and width that the network takes; a row of a square number is an image laid flat."""
    if form is None:
        return None
    if len(form) > 1:
        return form[-2:]
    side = math.isqrt(form[0])
    return (side, side) if side * side == form[0] else None
