"""ResNet: blocks that add their input to their output."""

from __future__ import annotations

from torch import Tensor, nn

from laptime.training.networks.registry import network


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: the block of depths 18 and 34."""

    expansion = 1

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, kernel_size=3, stride=stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(width, width, kernel_size=3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width * self.expansion, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out)
        return result


class Bottleneck(nn.Module):
    """1x1 to `width`, 3x3, 1x1 to four times `width`, and a shortcut: the block of depth 50 and more.

    The stride is on the 3x3 (v1.5), where no input pixel is skipped; the paper has it on the first 1x1.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, kernel_size=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, kernel_size=3, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, width * self.expansion, kernel_size=1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width * self.expansion, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out)
        return result


Block = type[BasicBlock] | type[Bottleneck]

# The block and how many of it in each of the four stages: table 1 of the paper.
_STAGES: dict[int, tuple[Block, tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}


@network("resnet18", input=(3, 224, 224), classes=1000, parameters=11_689_512, options={"depth": 18})
@network("resnet50", input=(3, 224, 224), classes=1000, parameters=25_557_032, options={"depth": 50})
class ResNet(nn.Module):
    """ResNet of depth 18 to 152: 18 has 11,689,512 parameters at 1000 classes, 50 has 25,557,032.

    He et al., "Deep residual learning for image recognition", arXiv:1512.03385, in the v1.5 form and with the
    module names of torchvision, so that its checkpoints load.
    """

    def __init__(self, *, depth: int = 50, num_classes: int = 1000) -> None:
        super().__init__()
        if depth not in _STAGES:
            raise ValueError(f"ResNet has depth {', '.join(map(str, _STAGES))}; got {depth}")
        block, (blocks1, blocks2, blocks3, blocks4) = _STAGES[depth]
        self.conv1 = _convolution(3, 64, kernel_size=7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, blocks1, stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, blocks2, stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, blocks3, stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, blocks4, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _stage(block: Block, inputs: int, width: int, blocks: int, *, stride: int) -> nn.Sequential:
    outputs = width * block.expansion
    rest = (block(outputs, width, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(block(inputs, width, stride=stride), *rest)


def _shortcut(inputs: int, outputs: int, *, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, kernel_size=1, stride=stride), nn.BatchNorm2d(outputs))


def _convolution(inputs: int, outputs: int, *, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    # No bias: the batch norm that always follows would cancel it.
    return nn.Conv2d(inputs, outputs, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)
