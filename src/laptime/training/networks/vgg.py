"""VGG: stages of 3x3 convolutions, each closed by a pooling that halves the image."""

from __future__ import annotations

from torch import Tensor, nn

from laptime.training.networks.registry import network

_CHANNELS = (64, 128, 256, 512, 512)

# Convolutions in each of the five stages: configurations A, B, D and E of the paper's table 1.
_STAGES: dict[int, tuple[int, int, int, int, int]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


@network("vgg11", input=(3, 224, 224), classes=1000, parameters=132_863_336, options={"depth": 11})
@network("vgg13", input=(3, 224, 224), classes=1000, parameters=133_047_848, options={"depth": 13})
@network("vgg16", input=(3, 224, 224), classes=1000, parameters=138_357_544, options={"depth": 16})
@network("vgg19", input=(3, 224, 224), classes=1000, parameters=143_667_240, options={"depth": 19})
class VGG(nn.Module):
    """VGG of depth 11, 13, 16 or 19: VGG-11 has 132,863,336 parameters at 1000 classes.

    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition",
    arXiv:1409.1556, with the module names of torchvision, so that its checkpoints load. `batch_norm` adds the
    normalisation that the paper did not have.
    """

    def __init__(
        self, *, depth: int = 11, num_classes: int = 1000, batch_norm: bool = False, dropout: float = 0.5
    ) -> None:
        super().__init__()
        if depth not in _STAGES:
            raise ValueError(f"VGG has depth {', '.join(map(str, _STAGES))}; got {depth}")
        layers: list[nn.Module] = []
        inputs = 3
        for channels, convolutions in zip(_CHANNELS, _STAGES[depth], strict=True):
            for _ in range(convolutions):
                layers.append(nn.Conv2d(inputs, channels, kernel_size=3, padding=1))
                if batch_norm:
                    layers.append(nn.BatchNorm2d(channels))
                layers.append(nn.ReLU(inplace=True))
                inputs = channels
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.features = nn.Sequential(*layers)
        # Pools to the 7x7 that 224-pixel images give anyway, so other image sizes fit the same linear layers.
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, num_classes),
        )
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.avgpool(self.features(images))
        logits: Tensor = self.classifier(maps.flatten(1))
        return logits


def _initialise(module: nn.Module) -> None:
    # Without batch norm PyTorch's default shrinks the signal at every convolution until nothing learns.
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
