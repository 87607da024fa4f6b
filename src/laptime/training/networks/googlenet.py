"""GoogLeNet: nine inception blocks, and two auxiliary heads that help training only."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from laptime.training.networks.registry import network


class GoogLeNetOutput(NamedTuple):
    """Logits of the three heads, deepest first; the paper weighs each auxiliary loss by 0.3."""

    logits: Tensor
    aux2: Tensor
    aux1: Tensor


@network("googlenet", input=(3, 224, 224), classes=1000, parameters=13_004_888)
class GoogLeNet(nn.Module):
    """GoogLeNet: 13,004,888 parameters at 1000 classes, 6,624,904 without the auxiliary heads.

    Szegedy et al., "Going deeper with convolutions", arXiv:1409.4842, in torchvision's form: batch norm after
    every convolution, and 3x3 convolutions where the paper has 5x5.
    """

    def __init__(
        self,
        *,
        num_classes: int = 1000,
        aux_heads: bool = True,
        dropout: float = 0.2,
        aux_dropout: float = 0.7,
    ) -> None:
        super().__init__()
        self.conv1 = BasicConv2d(3, 64, kernel_size=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = BasicConv2d(64, 64, kernel_size=1)
        self.conv3 = BasicConv2d(64, 192, kernel_size=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)

        self.inception3a = Inception(192, 64, (96, 128), (16, 32), 32)
        self.inception3b = Inception(256, 128, (128, 192), (32, 96), 64)
        self.maxpool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)

        self.inception4a = Inception(480, 192, (96, 208), (16, 48), 64)
        self.inception4b = Inception(512, 160, (112, 224), (24, 64), 64)
        self.inception4c = Inception(512, 128, (128, 256), (24, 64), 64)
        self.inception4d = Inception(512, 112, (144, 288), (32, 64), 64)
        self.inception4e = Inception(528, 256, (160, 320), (32, 128), 128)
        self.maxpool4 = nn.MaxPool2d(2, stride=2, ceil_mode=True)

        self.inception5a = Inception(832, 256, (160, 320), (32, 128), 128)
        self.inception5b = Inception(832, 384, (192, 384), (48, 128), 128)

        self.aux1 = AuxiliaryHead(512, num_classes, dropout=aux_dropout) if aux_heads else None
        self.aux2 = AuxiliaryHead(528, num_classes, dropout=aux_dropout) if aux_heads else None

        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(1024, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # Bounds in units of the value, as torchvision has them: at std 0.01 they never cut.
                nn.init.trunc_normal_(module.weight, std=0.01, a=-2.0, b=2.0)

    def forward(self, images: Tensor) -> Tensor | GoogLeNetOutput:
        """Logits; in training mode, with auxiliary heads, the logits of all three."""
        x: Tensor = self.maxpool1(self.conv1(images))
        x = self.maxpool2(self.conv3(self.conv2(x)))
        x = self.maxpool3(self.inception3b(self.inception3a(x)))
        x = self.inception4a(x)
        aux1 = self.aux1(x) if self.aux1 is not None and self.training else None
        x = self.inception4d(self.inception4c(self.inception4b(x)))
        aux2 = self.aux2(x) if self.aux2 is not None and self.training else None
        x = self.maxpool4(self.inception4e(x))
        x = self.avgpool(self.inception5b(self.inception5a(x)))
        logits: Tensor = self.fc(self.dropout(x.flatten(1)))
        if aux1 is None or aux2 is None:
            return logits
        return GoogLeNetOutput(logits, aux2, aux1)


class Inception(nn.Module):
    """Four branches side by side, joined by channel: 1x1, 1x1 then 3x3 (twice), and pooling then 1x1.

    `branch2` and `branch3` are given as (channels reduced to, channels out).
    """

    def __init__(
        self, inputs: int, branch1: int, branch2: tuple[int, int], branch3: tuple[int, int], branch4: int
    ) -> None:
        super().__init__()
        self.branch1 = BasicConv2d(inputs, branch1, kernel_size=1)
        self.branch2 = _reduced_branch(inputs, *branch2)
        # The paper's third branch is 5x5; torchvision's published weights were trained with 3x3.
        self.branch3 = _reduced_branch(inputs, *branch3)
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True),
            BasicConv2d(inputs, branch4, kernel_size=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], dim=1)


class AuxiliaryHead(nn.Module):
    """A classifier on intermediate maps, so that the early blocks get a gradient of their own."""

    def __init__(self, inputs: int, num_classes: int, *, dropout: float) -> None:
        super().__init__()
        self.conv = BasicConv2d(inputs, 128, kernel_size=1)
        self.fc1 = nn.Linear(128 * 4 * 4, 1024)
        self.fc2 = nn.Linear(1024, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, maps: Tensor) -> Tensor:
        x: Tensor = self.conv(functional.adaptive_avg_pool2d(maps, (4, 4)))
        x = functional.relu(self.fc1(x.flatten(1)), inplace=True)
        logits: Tensor = self.fc2(self.dropout(x))
        return logits


class BasicConv2d(nn.Module):
    """Convolution, batch norm and an in-place ReLU; the convolution has no bias, the norm has one."""

    def __init__(self, inputs: int, outputs: int, **convolution: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, bias=False, **convolution)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)), inplace=True)


def _reduced_branch(inputs: int, reduced: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        BasicConv2d(inputs, reduced, kernel_size=1), BasicConv2d(reduced, outputs, kernel_size=3, padding=1)
    )
