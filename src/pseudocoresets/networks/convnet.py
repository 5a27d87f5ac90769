"""The ConvNet of the dataset-condensation literature: blocks of 3x3 convolution, norm, activation and pooling."""

from __future__ import annotations

import math

from torch import Tensor, nn

from pseudocoresets.errors import InputError
from pseudocoresets.networks.network import Shape

SMALLEST_SIDE = 8
PADDED_SIDE = 28
"""Images of 28 x 28 are padded to 32 x 32 by the first convolution, as the literature does."""


class ConvNet(nn.Module):
    """``depth`` blocks of ``width`` channels, each halving the image, and one linear layer."""

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
        super().__init__()
        channels, side = shape[0], _square_side(shape)
        width = width or default_width(side)
        padding = 3 if side == PADDED_SIDE else 1
        side += 2 * (padding - 1)
        blocks: list[nn.Module] = []
        for index in range(depth or default_depth(side)):
            blocks.append(nn.Conv2d(channels, width, kernel_size=3, padding=padding if index == 0 else 1))
            blocks += normalisation(norm, width, side)
            blocks.append(activation_layer(activation))
            if pooling != "none":
                blocks.append(pooling_layer(pooling))
                side //= 2
            channels = width
        if side == 0:
            raise InputError(f"Images of {shape[1]} x {shape[2]} are too small for {depth} pooling blocks; lower the depth.")
        self.features = nn.Sequential(*blocks)
        self.classifier = nn.Linear(width * side * side, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def default_depth(side: int) -> int:
    """Blocks that bring the image down to 4 x 4, but at least two."""
    return max(2, int(math.log2(side)) - 2)


def default_width(side: int) -> int:
    return 128 if side >= PADDED_SIDE else 32


def normalisation(kind: str, width: int, side: int) -> list[nn.Module]:
    """A normalisation layer of one kind, or nothing; 'instance' and 'layer' are group norms of one channel or all."""
    groups = {"instance": width, "group": 4, "layer": 1}
    if kind in groups:
        return [nn.GroupNorm(groups[kind], width, affine=True)]
    if kind == "batch":
        return [nn.BatchNorm2d(width)]
    if kind == "none":
        return []
    raise InputError(f"The norm must be instance, batch, group, layer or none; got '{kind}'.")


def pooling_layer(kind: str) -> nn.Module:
    if kind == "average":
        return nn.AvgPool2d(2)
    if kind == "max":
        return nn.MaxPool2d(2)
    raise InputError(f"The pooling must be average, max or none; got '{kind}'.")


def activation_layer(kind: str) -> nn.Module:
    if kind == "relu":
        return nn.ReLU()
    if kind == "leaky-relu":
        return nn.LeakyReLU(0.01)
    if kind == "sigmoid":
        return nn.Sigmoid()
    raise InputError(f"The activation must be relu, leaky-relu or sigmoid; got '{kind}'.")


def _square_side(shape: Shape) -> int:
    _, height, width = shape
    if height != width or height < SMALLEST_SIDE:
        raise InputError(
            f"ConvNet takes square images of at least {SMALLEST_SIDE} x {SMALLEST_SIDE}; got {height} x {width}."
        )
    return height
