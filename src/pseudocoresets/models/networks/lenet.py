"""LeNet-5 with rectifiers and max pooling, as the dataset-condensation literature uses it."""

from __future__ import annotations

from torch import nn

from pseudocoresets.models.networks.layers import first_padding, padded_side, square_side
from pseudocoresets.models.networks.network import Shape
from pseudocoresets.models.networks.stack import Stack

SMALLEST_SIDE = 16


class LeNet(Stack):
    """Two 5x5 convolutions with max pooling and three linear layers."""

    def __init__(self, shape: Shape, classes: int) -> None:
        image_side = square_side("LeNet", shape, SMALLEST_SIDE)
        side = ((padded_side(image_side) - 4) // 2 - 4) // 2
        features = [
            nn.Conv2d(shape[0], 6, kernel_size=5, padding=first_padding(image_side, 0)),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        classifier = nn.Sequential(
            nn.Linear(16 * side * side, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )
        super().__init__(features, classifier)
