"""Differentiable Siamese augmentation (DSA): one kind a batch or an image, parameters of its own for each image.

Every transformation is batched on the images' device, differentiable in the images, and never waits for the device: it
has no shape or branch that depends on what was drawn, so it can be captured in a CUDA graph. A transformation keeps the
images' number format.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness

Transformation: TypeAlias = Callable[[Tensor], Tensor]
"""One drawn augmentation; calling it again applies the same one, to the same number of images."""

BRIGHTNESS = 1.0
SATURATION = 2.0
CONTRAST = 0.5
CROP_PADDING = 0.125
CUTOUT_RATIO = 0.5
MAXIMAL_SCALE = 1.2
MAXIMAL_ROTATION_DEGREES = 15.0
KINDS = ("color", "crop", "cutout", "flip", "scale", "rotate")


@dataclass(frozen=True)
class Augmentation:
    """A set of kinds from which each batch draws one.

    ``mixed`` deals the images of a batch out to the kinds instead, at random and as evenly as their number allows. A
    step of a chain then sees all kinds, and its gradient is the less noisy for it.
    """

    kinds: tuple[str, ...] = KINDS
    mixed: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(KINDS)
        if unknown or not self.kinds:
            raise InputError(f"Augmentation kinds must be among {', '.join(KINDS)}; got {', '.join(self.kinds)}.")

    def draw(self, count: int, randomness: Randomness) -> Transformation:
        """One kind for the batch, or all of them, and parameters for ``count`` images."""
        if self.mixed:
            return self._deal(count, randomness)
        return self.draw_kind(randomness.host.choice(self.kinds), count, randomness.device)

    def draw_steps(self, steps: int, count: int, randomness: Randomness) -> Transformation:
        """The same for each of ``steps`` steps, for images (sources, steps, images, channels, height, width).

        ``count`` is the number of images of one step over all sources. What is of one kind is transformed together.
        """
        if self.mixed:
            mix = self._deal(steps * count, randomness)
            return lambda x: mix(x.flatten(0, 2)).view(x.shape)
        kinds = [randomness.host.choice(self.kinds) for _ in range(steps)]
        order = sorted(range(steps), key=kinds.__getitem__)
        inverse = sorted(range(steps), key=order.__getitem__)
        drawn = [
            (times, self.draw_kind(kind, times * count, randomness.device))
            for kind, times in sorted(Counter(kinds).items())
        ]

        def apply(x: Tensor) -> Tensor:
            if x.stride(1) != 0:
                x = x[:, _index(order, x.device)]
            parts = x.split([times for times, _ in drawn], 1)
            done = [draw(part.flatten(0, 2)).view(part.shape) for part, (_, draw) in zip(parts, drawn, strict=True)]
            return torch.cat(done, 1)[:, _index(inverse, x.device)]

        return apply

    def _deal(self, count: int, randomness: Randomness) -> Transformation:
        """A kind for each of ``count`` images; the kinds' numbers differ by one at most."""
        generator = randomness.device
        order = torch.rand(count, generator=generator, device=generator.device).argsort()
        inverse = order.argsort()
        kinds = randomness.host.sample(self.kinds, min(count, len(self.kinds)))
        sizes = [len(range(first, count, len(kinds))) for first in range(len(kinds))]
        draws = [self.draw_kind(kind, size, generator) for kind, size in zip(kinds, sizes, strict=True)]

        def apply(x: Tensor) -> Tensor:
            parts = x.index_select(0, order).split(sizes)
            return torch.cat([draw(part) for draw, part in zip(draws, parts, strict=True)]).index_select(0, inverse)

        return apply

    @staticmethod
    def draw_kind(kind: str, count: int, generator: torch.Generator) -> Transformation:
        """Parameters of a given kind for ``count`` images."""
        uniform = torch.rand(3, count, generator=generator, device=generator.device)
        apply = _APPLY[kind]
        return lambda images: apply(images, uniform)


def dsa(flippable: bool, mixed: bool = False) -> Augmentation:
    """The literature's six kinds, without flips where a mirrored image changes its meaning."""
    return Augmentation(tuple(kind for kind in KINDS if flippable or kind != "flip"), mixed)


def _index(values: list[int], device: torch.device) -> Tensor:
    """A list of indices on the device, without waiting for it."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _color(images: Tensor, uniform: Tensor) -> Tensor:
    """Brightness, saturation and contrast, in this order."""
    brightness, saturation, contrast = uniform.to(images.dtype)[:, :, None, None, None].unbind()
    images = images + (brightness - 0.5) * BRIGHTNESS
    grey = images.mean(1, keepdim=True)
    images = (images - grey) * (saturation * SATURATION) + grey
    level = images.mean((1, 2, 3), keepdim=True)
    return (images - level) * (contrast + CONTRAST) + level


def _crop(images: Tensor, uniform: Tensor) -> Tensor:
    """Shift by up to an eighth of the side each way; what comes in from outside is zero."""
    height, width = images.shape[-2:]
    rows = _shifted_positions(height, uniform[0], images.device)[:, None, :, None]
    columns = _shifted_positions(width, uniform[1], images.device)[:, None, None, :]
    inside = _inside(rows, height) & _inside(columns, width)
    shifted = images.gather(2, rows.clamp(0, height - 1).expand_as(images))
    shifted = shifted.gather(3, columns.clamp(0, width - 1).expand_as(images))
    return shifted * inside


def _cutout(images: Tensor, uniform: Tensor) -> Tensor:
    """Zero a square of half the side, centred anywhere in the image."""
    height, width = images.shape[-2:]
    in_rows = _in_cutout(height, uniform[0], images.device)[:, None, :, None]
    in_columns = _in_cutout(width, uniform[1], images.device)[:, None, None, :]
    return images * ~(in_rows & in_columns)


def _flip(images: Tensor, uniform: Tensor) -> Tensor:
    """Mirror left and right with probability a half."""
    return torch.where(uniform[0, :, None, None, None] < 0.5, images.flip(3), images)


def _scale(images: Tensor, uniform: Tensor) -> Tensor:
    """Shrink or enlarge each side by up to the maximal scale, independently."""
    low, high = 1 / MAXIMAL_SCALE, MAXIMAL_SCALE
    factors = low + uniform[:2] * (high - low)
    zero = torch.zeros_like(factors[0])
    return _affine(images, torch.stack([factors[0], zero, zero, factors[1]]))


def _rotate(images: Tensor, uniform: Tensor) -> Tensor:
    """Turn about the centre by up to the maximal angle either way."""
    angle = (uniform[0] - 0.5) * (2 * math.radians(MAXIMAL_ROTATION_DEGREES))
    height, width = images.shape[-2:]
    aspect = max(1, height - 1) / max(1, width - 1)  # positions run from -1 to 1 along either side
    return _affine(images, torch.stack([angle.cos(), -angle.sin() * aspect, angle.sin() / aspect, angle.cos()]))


def _affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Resample about the centre; ``matrices`` is (4, count) and maps output to input positions."""
    precise = torch.promote_types(images.dtype, torch.float32)  # half precision cannot place a pixel
    theta = F.pad(matrices.T.reshape(-1, 2, 2), (0, 1)).to(precise)
    grid = F.affine_grid(theta, list(images.shape), align_corners=True)
    moved = F.grid_sample(images.to(precise), grid, mode="bilinear", padding_mode="zeros", align_corners=True)
    return moved.to(images.dtype)


def _shifted_positions(side: int, uniform: Tensor, device: torch.device) -> Tensor:
    reach = int(side * CROP_PADDING + 0.5)
    shift = _draw_below(2 * reach + 1, uniform) - reach
    return torch.arange(side, device=device) + shift[:, None]


def _draw_below(bound: int, uniform: Tensor) -> Tensor:
    """Whole numbers from 0 to ``bound - 1``; the clamp is for products that round up to ``bound``."""
    return (uniform * bound).long().clamp_max(bound - 1)


def _inside(positions: Tensor, side: int) -> Tensor:
    return (positions >= 0) & (positions < side)


def _in_cutout(side: int, uniform: Tensor, device: torch.device) -> Tensor:
    size = int(side * CUTOUT_RATIO + 0.5)
    centre = _draw_below(side + (1 - size % 2), uniform)
    first = (centre - size // 2)[:, None]
    positions = torch.arange(side, device=device)
    return (positions >= first) & (positions < first + size)


_APPLY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "color": _color,
    "crop": _crop,
    "cutout": _cutout,
    "flip": _flip,
    "scale": _scale,
    "rotate": _rotate,
}
