"""VGG11 for small images, as the dataset-condensation literature uses it."""

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

SMALLEST_SIDE = 28
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the convolutions between poolings."""


class VGG11(Stack):
    """Eight 3x3 convolutions in five stages, each stage halving the image, and one linear layer."""

    def __init__(self, shape: Shape, classes: int, norm: str = "instance", activation: str = "relu") -> None:
        image_side = square_side("VGG11", shape, SMALLEST_SIDE)
        inputs, side = shape[0], padded_side(image_side)
        layers: list[nn.Module] = []
        for stage in STAGES:
            for channels in stage:
                padding = 1 if layers else first_padding(image_side, 1)
                layers.append(nn.Conv2d(inputs, channels, kernel_size=3, padding=padding))
                layers += normalisation(norm, channels, side)
                layers.append(activation_layer(activation))
                inputs = channels
            layers.append(nn.MaxPool2d(2))
            side //= 2
        super().__init__(layers, nn.Linear(inputs * side * side, classes))
