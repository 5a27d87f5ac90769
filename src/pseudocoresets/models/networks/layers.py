"""The layers that the networks of this library share, by name, and what their options may be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from pseudocoresets.core.errors import InputError
from pseudocoresets.models.networks.network import Shape

PADDED_SIDE = 28
"""Images of 28 x 28 are padded to 32 x 32 by the first convolution, as the literature does."""

LARGEST = {"depth": 1000, "width": 100_000}
"""Beyond these, building a network takes longer than anybody waits, or more memory than there is."""
GROUPS = 4
"""Groups of the norm 'group'."""


def normalisation(kind: str, channels: int, side: int) -> list[nn.Module]:
    """A normalisation layer for (channels, side, side), or nothing.

    'instance' is a group norm with a group for each channel; 'layer' has a scale and a shift for each pixel.
    """
    one_of("norm", kind, ("instance", "batch", "group", "layer", "none"))
    if kind == "instance":
        return [nn.GroupNorm(channels, channels)]
    if kind == "batch":
        return [nn.BatchNorm2d(channels)]
    if kind == "group":
        if channels % GROUPS:
            raise InputError(f"The norm 'group' needs a width that is a multiple of {GROUPS}; got {channels}.")
        return [nn.GroupNorm(GROUPS, channels)]
    if kind == "layer":
        return [nn.LayerNorm([channels, side, side])]
    return []


def pooling_layers(kind: str) -> list[nn.Module]:
    """A layer that halves the image, or nothing."""
    one_of("pooling", kind, ("average", "max", "none"))
    if kind == "none":
        return []
    return [nn.AvgPool2d(2) if kind == "average" else nn.MaxPool2d(2)]


def activation_layer(kind: str) -> nn.Module:
    one_of("activation", kind, ("relu", "leaky-relu", "sigmoid"))
    if kind == "relu":
        return nn.ReLU()
    return nn.LeakyReLU(0.01) if kind == "leaky-relu" else nn.Sigmoid()


def one_of(option: str, value: Any, choices: Iterable[str]) -> None:
    if value not in choices:
        raise InputError(f"The {option} must be one of {', '.join(choices)}; got '{value}'.")


def positive(option: str, value: Any) -> int:
    most = LARGEST[option]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InputError(f"The {option} must be a whole number from 1 to {most:,}; got '{value}'.")
    return value


def square_side(network: str, shape: Shape, smallest: int) -> int:
    """The side of square images that are large enough for a network."""
    _, height, width = shape
    if height != width or height < smallest:
        raise InputError(f"{network} takes square images of at least {smallest} x {smallest}; got {height} x {width}.")
    return height


def first_padding(side: int, usual: int) -> int:
    """The first convolution's padding, which brings images of 28 x 28 to the size that 32 x 32 would have."""
    return usual + 2 if side == PADDED_SIDE else usual


def padded_side(side: int) -> int:
    """The side of the first convolution's output."""
    return side + 4 if side == PADDED_SIDE else side
