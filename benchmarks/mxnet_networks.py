"""The networks of MXNet's `example/image-classification`, as torch modules, and HKBU's fully connected ones.

Widths follow the papers; where MXNet's examples differ from torchvision (AlexNet on one GPU with its
normalisation, two inceptions) they follow MXNet.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from laptime.training.networks.resnet import ResNet
from laptime.training.networks.vgg import VGG

Kernel = int | tuple[int, int]


class Convolution(nn.Sequential):
    """A convolution with batch norm and ReLU; without a stride it keeps the size unless told not to pad."""

    def __init__(
        self, inputs: int, outputs: int, kernel: Kernel = 1, stride: int = 1, *, pad: bool = True
    ) -> None:
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (high // 2, wide // 2) if pad else (0, 0)
        convolution = nn.Conv2d(inputs, outputs, (high, wide), stride, padding, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Side(nn.Module):
    """Branches side by side, joined by channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """All branches see the same input."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _row(inputs: int, *parts: tuple[Any, ...], stride: int = 1, pad: bool = True) -> nn.Sequential:
    """Convolutions after each other: (outputs, kernel) each; the last one has the stride."""
    made = []
    for index, (outputs, kernel) in enumerate(parts):
        last = index == len(parts) - 1 and stride > 1
        made.append(Convolution(inputs, outputs, kernel, stride if last else 1, pad=pad or not last))
        inputs = outputs
    return nn.Sequential(*made)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), Convolution(inputs, outputs))


def _head(features: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 1000)]


def inception_bn() -> nn.Module:
    """Inception with batch norm (arXiv:1502.03167), for 224 × 224."""
    stem = [Convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2), Convolution(64, 64), Convolution(64, 192, 3)]
    made, inputs = [*stem, nn.MaxPool2d(3, 2)], 192
    # (1×1, 3×3 reduced, 3×3, double 3×3 reduced, double 3×3, pooled); 0: with a stride and without 1×1.
    for one, reduced, three, twice, double, pooled in (
        (64, 64, 64, 64, 96, 32), (64, 64, 96, 64, 96, 64), (0, 128, 160, 64, 96, 0),
        (224, 64, 96, 96, 128, 128), (192, 96, 128, 96, 128, 128), (160, 128, 160, 128, 160, 128),
        (96, 128, 192, 160, 192, 128), (0, 128, 192, 192, 256, 0),
        (352, 192, 320, 160, 224, 128), (352, 192, 320, 192, 224, 128),
    ):  # fmt: skip
        stride = 1 if one else 2
        branches: list[nn.Module] = [
            _row(inputs, (reduced, 1), (three, 3), stride=stride),
            _row(inputs, (twice, 1), (double, 3), (double, 3), stride=stride),
        ]
        more = [Convolution(inputs, one), _pooled(inputs, pooled)] if one else [nn.MaxPool2d(3, 2, 1)]
        made.append(Side(*branches, *more))
        inputs = three + double + (one + pooled if one else inputs)
    return nn.Sequential(*made, *_head(inputs))


def inception_v3() -> nn.Module:
    """Inception v3 (arXiv:1512.00567), for 299 × 299, without its auxiliary head."""
    made: list[nn.Module] = [
        Convolution(3, 32, 3, 2, pad=False), Convolution(32, 32, 3, pad=False), Convolution(32, 64, 3),
        nn.MaxPool2d(3, 2), Convolution(64, 80), Convolution(80, 192, 3, pad=False), nn.MaxPool2d(3, 2),
    ]  # fmt: skip
    inputs = 192
    for pooled in (32, 64, 64):
        rows = _row(inputs, (48, 1), (64, 5)), _row(inputs, (64, 1), (96, 3), (96, 3))
        made.append(Side(Convolution(inputs, 64), *rows, _pooled(inputs, pooled)))
        inputs = 224 + pooled
    shrink = _row(inputs, (64, 1), (96, 3), (96, 3), stride=2, pad=False)
    made.append(Side(Convolution(inputs, 384, 3, 2, pad=False), shrink, nn.MaxPool2d(3, 2)))
    inputs = 768
    for width in (128, 160, 160, 192):
        across, down = (1, 7), (7, 1)
        twice = _row(inputs, (width, 1), (width, across), (192, down))
        often = _row(inputs, (width, 1), (width, down), (width, across), (width, down), (192, across))
        made.append(Side(Convolution(inputs, 192), twice, often, _pooled(inputs, 192)))
    rows = (
        _row(inputs, (192, 1), (320, 3), stride=2, pad=False),
        _row(inputs, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), stride=2, pad=False),
    )
    made.append(Side(*rows, nn.MaxPool2d(3, 2)))
    inputs = 1280
    for _ in range(2):
        fork = Side(Convolution(384, 384, (1, 3)), Convolution(384, 384, (3, 1)))
        other = Side(Convolution(384, 384, (1, 3)), Convolution(384, 384, (3, 1)))
        rows = nn.Sequential(Convolution(inputs, 384), fork), _row(inputs, (448, 1), (384, 3)).append(other)
        made.append(Side(Convolution(inputs, 320), *rows, _pooled(inputs, 192)))
        inputs = 2048
    return nn.Sequential(*made, *_head(inputs))


def alexnet() -> nn.Module:
    """AlexNet on one GPU, with local response normalisation, as in its paper."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4), nn.ReLU(), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5),
        nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Linear(6400, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
        nn.Linear(4096, 1000),
    )  # fmt: skip


def connected(hidden: int) -> nn.Module:
    """HKBU's fully connected networks: 512 inputs, hidden layers of 2048, 1000 classes."""
    pairs = pairwise([512, *[2048] * hidden])
    return nn.Sequential(
        *(one for a, b in pairs for one in (nn.Linear(a, b), nn.Sigmoid())), nn.Linear(2048, 1000)
    )


NETWORKS = {
    "Alexnet": alexnet,
    "VGG 16": lambda: VGG(depth=16),
    "Inception-BN": inception_bn,
    "Inception-v3": inception_v3,
    "Resnet 50": lambda: ResNet(depth=50),
    "Resnet 152": lambda: ResNet(depth=152),
    "fcn5": lambda: connected(3),
    "fcn8": lambda: connected(6),
}


def shape(name: str) -> tuple[int, ...]:
    """One sample."""
    if name.startswith("fcn"):
        return (512,)
    return (3, 299, 299) if name == "Inception-v3" else (3, 224, 224)
