"""Differentiable Siamese augmentation (DSA): one kind per batch or image, parameters of its own for each image.

Every transformation is batched on the images' device, differentiable in the images, and never waits for the device: it
has no shape or branch that depends on what was drawn, so it can be captured in a CUDA graph. A transformation keeps the
images' number format.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import Registry
from pseudocoresets.core.seeds import Randomness

Transformation: TypeAlias = Callable[[Tensor], Tensor]
"""One drawn augmentation; calling it again applies the same one, to the same number of images."""

KINDS = ("color", "crop", "cutout", "flip", "scale", "rotate")


class AnyAugmentation(Protocol):
    """What construction, experts and samplers ask of an augmentation; one of your own may stand wherever DSA does."""

    @property
    def kinds(self) -> Sequence[str]:
        """Names of the kinds that ``draw_kind`` knows, at least one."""

    def draw(self, count: int, randomness: Randomness) -> Transformation:
        """One transformation for ``count`` images (count, channels, height, width), differentiable in them.

        ``count`` 1 is one for all, however many.
        """

    def draw_steps(self, steps: int, count: int, randomness: Randomness) -> Transformation:
        """One for images (sources, steps, images, ...) whose steps are drawn apart; count = sources * images."""

    def draw_kind(self, kind: str, count: int, generator: torch.Generator) -> Transformation:
        """The same as ``draw`` for a kind that was chosen elsewhere; ``count`` 1 is one for all, however many."""


@dataclass(frozen=True)
class Strengths:
    """How far each kind may go; the defaults are the literature's, and 0 (for scale 1) changes nothing."""

    brightness: float = 1.0
    """Colours are shifted by up to half of this either way."""
    saturation: float = 2.0
    """The distance from grey is multiplied by 1 and up to half of this more or less."""
    contrast: float = 0.5
    """The distance from the mean is multiplied by 1 and up to this more or less."""
    crop: float = 0.125
    """Part of the side by which an image is shifted."""
    cutout: float = 0.5
    """Part of the side that is hidden."""
    scale: float = 1.2
    """The largest factor by which a side is stretched; 1 leaves it as it is."""
    rotate: float = 15.0
    """The largest angle, in degrees."""

    def __post_init__(self) -> None:
        wrong = [entry.name for entry in fields(self) if not 0 <= getattr(self, entry.name) < math.inf]
        if wrong or self.scale < 1 or self.crop > 1 or self.cutout > 1:
            raise InputError(
                "Strengths of augmentation must be finite and at least 0; scale at least 1, crop and cutout at most 1; "
                f"got {self}."
            )


@dataclass(frozen=True)
class Augmentation:
    """A set of kinds from which each batch draws one.

    ``mixed`` deals the images of a batch out to the kinds instead, at random and as evenly as their number allows. A
    step of a chain then sees all kinds, and its gradient is the less noisy for it.
    """

    kinds: tuple[str, ...] = KINDS
    mixed: bool = False
    strengths: Strengths = field(default_factory=Strengths)

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(KINDS)
        if unknown or not self.kinds:
            raise InputError(f"Augmentation kinds must be among {', '.join(KINDS)}; got {', '.join(self.kinds)}.")

    def draw(self, count: int, randomness: Randomness) -> Transformation:
        """One kind for the batch, or all of them, and parameters for ``count`` images."""
        if self.mixed and count > 1:
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

    def draw_kind(self, kind: str, count: int, generator: torch.Generator) -> Transformation:
        """Parameters of a given kind for ``count`` images; 1 is one set for all images, however many."""
        uniform = torch.rand(3, count, generator=generator, device=generator.device)
        apply, strengths = _APPLY[kind], self.strengths
        return lambda images: apply(images, uniform, strengths)


def dsa(
    flippable: bool,
    mixed: bool = False,
    kinds: Sequence[str] = KINDS,
    strengths: Strengths | Mapping[str, float] | None = None,
) -> Augmentation:
    """The literature's six kinds, without flips where a mirrored image changes its meaning.

    ``kinds`` keeps some of them; ``strengths``, such as ``{"saturation": 0, "rotate": 5}``, says how far they go.
    """
    if not isinstance(strengths, Strengths):
        known = {entry.name for entry in fields(Strengths)}
        unknown = sorted(set(strengths or ()) - known)
        if unknown:
            raise InputError(f"Augmentation has no strength '{unknown[0]}'; it has {', '.join(sorted(known))}.")
        strengths = Strengths(**(strengths or {}))
    return Augmentation(tuple(kind for kind in kinds if flippable or kind != "flip"), mixed, strengths)


def augmentation_for(
    wanted: bool, given: AnyAugmentation | None, flippable: bool, mixed: bool = False
) -> AnyAugmentation | None:
    """The one that is given, or DSA, or none where none is wanted."""
    if not wanted:
        return None
    return dsa(flippable, mixed) if given is None else given


AUGMENTATIONS: Registry[Callable[..., AnyAugmentation]] = Registry(
    "augmentation", {"dsa": dsa}, group="pseudocoresets.augmentations"
)
"""Every augmentation by name: a function of (flippable, mixed)."""


def _index(values: list[int], device: torch.device) -> Tensor:
    """A list of indices on the device, without waiting for it."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _color(images: Tensor, uniform: Tensor, strengths: Strengths) -> Tensor:
    """Brightness, saturation and contrast, in this order."""
    brightness, saturation, contrast = uniform.to(images.dtype)[:, :, None, None, None].unbind()
    images = images + (brightness - 0.5) * strengths.brightness
    grey = images.mean(1, keepdim=True)
    images = (images - grey) * (1 + (saturation - 0.5) * strengths.saturation) + grey
    level = images.mean((1, 2, 3), keepdim=True)
    return (images - level) * (1 + (contrast - 0.5) * (2 * strengths.contrast)) + level


def _crop(images: Tensor, uniform: Tensor, strengths: Strengths) -> Tensor:
    """Shift by up to a part of the side each way; what comes in from outside is zero."""
    height, width = images.shape[-2:]
    rows = _shifted_positions(height, strengths.crop, uniform[0], images.device)[:, None, :, None]
    columns = _shifted_positions(width, strengths.crop, uniform[1], images.device)[:, None, None, :]
    inside = _inside(rows, height) & _inside(columns, width)
    shifted = images.gather(2, rows.clamp(0, height - 1).expand_as(images))
    shifted = shifted.gather(3, columns.clamp(0, width - 1).expand_as(images))
    return shifted * inside


def _cutout(images: Tensor, uniform: Tensor, strengths: Strengths) -> Tensor:
    """Zero a square of a part of the side, centred anywhere in the image."""
    height, width = images.shape[-2:]
    in_rows = _in_cutout(height, strengths.cutout, uniform[0], images.device)[:, None, :, None]
    in_columns = _in_cutout(width, strengths.cutout, uniform[1], images.device)[:, None, None, :]
    return images * ~(in_rows & in_columns)


def _flip(images: Tensor, uniform: Tensor, strengths: Strengths) -> Tensor:
    """Mirror left and right with probability a half."""
    return torch.where(uniform[0, :, None, None, None] < 0.5, images.flip(3), images)


def _scale(images: Tensor, uniform: Tensor, strengths: Strengths) -> Tensor:
    """Shrink or enlarge each side by up to the maximal scale, independently."""
    low, high = 1 / strengths.scale, strengths.scale
    factors = low + uniform[:2] * (high - low)
    zero = torch.zeros_like(factors[0])
    return _affine(images, torch.stack([factors[0], zero, zero, factors[1]]))


def _rotate(images: Tensor, uniform: Tensor, strengths: Strengths) -> Tensor:
    """Turn about the centre by up to the maximal angle either way."""
    angle = (uniform[0] - 0.5) * (2 * math.radians(strengths.rotate))
    height, width = images.shape[-2:]
    aspect = max(1, height - 1) / max(1, width - 1)  # positions run from -1 to 1 along either side
    return _affine(images, torch.stack([angle.cos(), -angle.sin() * aspect, angle.sin() / aspect, angle.cos()]))


def _affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Resample about the centre; ``matrices`` is (4, count) and maps output to input positions."""
    precise = torch.promote_types(images.dtype, torch.float32)  # half precision cannot place a pixel
    theta = F.pad(matrices.T.reshape(-1, 2, 2), (0, 1)).to(precise).expand(len(images), -1, -1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=True)
    moved = F.grid_sample(images.to(precise), grid, mode="bilinear", padding_mode="zeros", align_corners=True)
    return moved.to(images.dtype)


def _shifted_positions(side: int, part: float, uniform: Tensor, device: torch.device) -> Tensor:
    reach = pixels_of(side, part)
    shift = _draw_below(2 * reach + 1, uniform) - reach
    return torch.arange(side, device=device) + shift[:, None]


def pixels_of(side: int, part: float) -> int:
    """A part of a side, in whole pixels."""
    return int(side * part + 0.5)


def _draw_below(bound: int, uniform: Tensor) -> Tensor:
    """Whole numbers from 0 to ``bound - 1``; the clamp is for products that round up to ``bound``."""
    return (uniform * bound).long().clamp_max(bound - 1)


def _inside(positions: Tensor, side: int) -> Tensor:
    return (positions >= 0) & (positions < side)


def _in_cutout(side: int, part: float, uniform: Tensor, device: torch.device) -> Tensor:
    size = pixels_of(side, part)
    centre = _draw_below(side + (1 - size % 2), uniform)
    first = (centre - size // 2)[:, None]
    positions = torch.arange(side, device=device)
    return (positions >= first) & (positions < first + size)


_APPLY: dict[str, Callable[[Tensor, Tensor, Strengths], Tensor]] = {
    "color": _color,
    "crop": _crop,
    "cutout": _cutout,
    "flip": _flip,
    "scale": _scale,
    "rotate": _rotate,
}
