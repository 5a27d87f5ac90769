"""ResNet18 for small images: a 3x3 stem without pooling, as the dataset-condensation literature uses it."""

from __future__ import annotations

from torch import Tensor, nn

from pseudocoresets.models.networks.layers import activation_layer, normalisation, square_side
from pseudocoresets.models.networks.network import Shape

SMALLEST_SIDE = 16
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and first stride of the four stages of two blocks."""


class ResNet18(nn.Module):
    """Eight residual blocks, the mean over the image and one linear layer; 28 x 28 images are not padded."""

    def __init__(self, shape: Shape, classes: int, norm: str = "instance", activation: str = "relu") -> None:
        super().__init__()
        channels, side = STAGES[0][0], square_side("ResNet18", shape, SMALLEST_SIDE)
        self.stem = nn.Sequential(
            nn.Conv2d(shape[0], channels, kernel_size=3, padding=1, bias=False),
            *normalisation(norm, channels, side),
            activation_layer(activation),
        )
        blocks: list[nn.Module] = []
        for outputs, first_stride in STAGES:
            for stride in (first_stride, 1):
                side = (side + 1) // stride if stride == 2 else side
                blocks.append(Residual(channels, outputs, stride, side, norm, activation))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.blocks(self.stem(images)).mean((2, 3)))
        return scores


class Residual(nn.Module):
    """x -> activation(shortcut(x) + two 3x3 convolutions of x); ``side`` is that of the result."""

    def __init__(self, inputs: int, outputs: int, stride: int, side: int, norm: str, activation: str) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
            *normalisation(norm, outputs, side),
            activation_layer(activation),
            nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False),
            *normalisation(norm, outputs, side),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
                *normalisation(norm, outputs, side),
            )
        self.activation = activation_layer(activation)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.activation(self.branch(x) + self.shortcut(x))
        return result
