"""AlexNet, the one-tower form."""

from __future__ import annotations

from torch import Tensor, nn

from laptime.training.networks.registry import network


@network("alexnet", input=(3, 224, 224), classes=1000, parameters=61_100_840)
class AlexNet(nn.Module):
    """AlexNet in one tower: 61,100,840 parameters at 1000 classes, 96 % of them in the linear layers.

    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997, with the
    module names and order of torchvision, so that its checkpoints load.
    """

    def __init__(self, *, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        # Pools to the 6x6 that 224-pixel images give anyway, so other image sizes fit the same linear layers.
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.avgpool(self.features(images))
        logits: Tensor = self.classifier(maps.flatten(1))
        return logits
