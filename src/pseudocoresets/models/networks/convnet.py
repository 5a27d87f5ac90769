"""The ConvNet of the dataset-condensation literature: blocks of convolution, norm, activation, pooling."""

from __future__ import annotations

import math

from torch import nn

from pseudocoresets.core.errors import InputError
from pseudocoresets.models.networks.layers import (
    PADDED_SIDE,
    activation_layer,
    first_padding,
    normalisation,
    padded_side,
    pooling_layers,
    positive,
    square_side,
)
from pseudocoresets.models.networks.network import Shape
from pseudocoresets.models.networks.stack import Stack

SMALLEST_SIDE = 8


class ConvNet(Stack):
    """``depth`` 3x3 convolutions of ``width`` channels, each halving the image, and one linear layer."""

    def __init__(
        self,
        shape: Shape,
        classes: int,
        depth: int | None = None,
        width: int | None = None,
        norm: str = "instance",
        pooling: str = "average",
        activation: str = "relu",
    ) -> None:
        image_side = square_side("ConvNet", shape, SMALLEST_SIDE)
        depth = default_depth(image_side) if depth is None else positive("depth", depth)
        width = default_width(image_side) if width is None else positive("width", width)
        channels, side = shape[0], padded_side(image_side)
        if pooling != "none" and side < 2**depth:
            raise InputError(
                f"Images of {image_side} x {image_side} allow a depth of at most {int(math.log2(side))} "
                f"with pooling; got {depth}."
            )
        blocks: list[nn.Module] = []
        for index in range(depth):
            padding = first_padding(image_side, 1) if index == 0 else 1
            blocks.append(nn.Conv2d(channels, width, kernel_size=3, padding=padding))
            blocks += normalisation(norm, width, side)
            blocks.append(activation_layer(activation))
            blocks += pooling_layers(pooling)
            side = side if pooling == "none" else side // 2
            channels = width
        super().__init__(blocks, nn.Linear(width * side * side, classes))


def default_depth(image_side: int) -> int:
    """Blocks that bring the image down to 4 x 4, but at least two."""
    return max(2, int(math.log2(padded_side(image_side))) - 2)


def default_width(image_side: int) -> int:
    return 128 if image_side >= PADDED_SIDE else 32
