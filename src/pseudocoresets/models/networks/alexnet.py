"""AlexNet for small images, as the dataset-condensation literature uses it."""

from __future__ import annotations

from torch import nn

from pseudocoresets.models.networks.layers import (
    activation_layer,
    first_padding,
    normalisation,
    padded_side,
    square_side,
)
from pseudocoresets.models.networks.network import Shape
from pseudocoresets.models.networks.stack import Stack

SMALLEST_SIDE = 8
CONVOLUTIONS = ((128, 5, True), (192, 5, True), (256, 3, False), (192, 3, False), (192, 3, True))
"""Channels, kernel size and whether max pooling follows."""


class AlexNet(Stack):
    """Five convolutions and one linear layer; the literature's has no norm."""

    def __init__(self, shape: Shape, classes: int, norm: str = "none", activation: str = "relu") -> None:
        image_side = square_side("AlexNet", shape, SMALLEST_SIDE)
        inputs, side = shape[0], padded_side(image_side)
        layers: list[nn.Module] = []
        for index, (channels, kernel, pooled) in enumerate(CONVOLUTIONS):
            padding = first_padding(image_side, kernel // 2) if index == 0 else kernel // 2
            layers.append(nn.Conv2d(inputs, channels, kernel_size=kernel, padding=padding))
            layers += normalisation(norm, channels, side)
            layers.append(activation_layer(activation))
            if pooled:
                layers.append(nn.MaxPool2d(2))
                side //= 2
            inputs = channels
        super().__init__(layers, nn.Linear(inputs * side * side, classes))
