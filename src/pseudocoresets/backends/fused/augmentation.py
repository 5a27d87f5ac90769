"""Differentiable Siamese augmentation as one kernel each way, whatever kinds were drawn.

Every kind but colour reads output pixel p at one place s(p) of the input, between pixels by bilinear weights, and may
hide it. With the four taps t of s(p), their weights b_t and h(p) in {0, 1},

    y_p = h(p) sum_t b_t x_t,          dx_t = sum_p h(p) b_t dy_p

and colour is linear in x but for a constant: with g the mean over channels and m that over the whole image,

    y = c (s (x - g) + g - m) + m + b,          dx = c s dy + c (1 - s) g(dy) + (1 - c) m(dy).

Kinds and parameters are drawn on the device, so that nothing waits for the host and a graph can be captured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import (
    KINDS,
    AnyAugmentation,
    Augmentation,
    Strengths,
    Transformation,
    pixels_of,
)

MOST_PIXELS = 64 * 64
"""Of an image that one program holds."""


@triton.jit
def _below(bound, uniform):
    """Whole numbers from 0 to ``bound - 1``."""
    return tl.minimum((uniform * bound).to(tl.int32), bound - 1)


@triton.jit
def _place(
    kind,
    u0,
    u1,
    row,
    column,
    height: tl.constexpr,
    width: tl.constexpr,
    reach_rows: tl.constexpr,
    reach_columns: tl.constexpr,
    hidden_rows: tl.constexpr,
    hidden_columns: tl.constexpr,
    scale: tl.constexpr,
    angle: tl.constexpr,
):
    """Where output pixels are read, and whether they are seen."""
    middle_row: tl.constexpr = (height - 1) / 2
    middle_column: tl.constexpr = (width - 1) / 2
    away_row = row.to(tl.float32) - middle_row
    away_column = column.to(tl.float32) - middle_column
    low: tl.constexpr = 1 / scale
    turn = (u0 - 0.5) * (2 * angle)
    cosine = tl.cos(turn)
    sine = tl.sin(turn)
    is_crop = kind == 1
    is_flipped = (kind == 3) & (u0 < 0.5)
    is_scale = kind == 4
    is_rotate = kind == 5
    down = tl.where(is_scale, low + u1 * (scale - low), tl.where(is_rotate, cosine, 1.0))
    across = tl.where(is_scale, low + u0 * (scale - low), tl.where(is_rotate, cosine, 1.0))
    across = tl.where(is_flipped, -1.0, across)
    shear = tl.where(is_rotate, sine, 0.0)
    shift_rows = tl.where(is_crop, _below(2 * reach_rows + 1, u0) - reach_rows, 0).to(tl.float32)
    shift_columns = tl.where(is_crop, _below(2 * reach_columns + 1, u1) - reach_columns, 0).to(tl.float32)
    read_row = shear * away_column + down * away_row + middle_row + shift_rows
    read_column = across * away_column - shear * away_row + middle_column + shift_columns
    first_row = _below(height + 1 - hidden_rows % 2, u0) - hidden_rows // 2
    first_column = _below(width + 1 - hidden_columns % 2, u1) - hidden_columns // 2
    in_rows = (row >= first_row) & (row < first_row + hidden_rows)
    in_columns = (column >= first_column) & (column < first_column + hidden_columns)
    seen = tl.where((kind == 2) & in_rows & in_columns, 0.0, 1.0)
    return read_row, read_column, seen


@triton.jit
def _tap(read_row, read_column, real, height: tl.constexpr, width: tl.constexpr, tap: tl.constexpr):
    """The offset of one of the four pixels about a place, its weight, and whether it is one and counts."""
    row = tl.floor(read_row)
    column = tl.floor(read_column)
    down = read_row - row
    across = read_column - column
    weight = (down if tap // 2 else 1 - down) * (across if tap % 2 else 1 - across)
    at_row = row.to(tl.int32) + tap // 2
    at_column = column.to(tl.int32) + tap % 2
    inside = (at_row >= 0) & (at_row < height) & (at_column >= 0) & (at_column < width)
    return at_row * width + at_column, weight, real & inside & (weight != 0)


@triton.jit
def _read(source, read_row, read_column, real, height: tl.constexpr, width: tl.constexpr):
    total = tl.zeros(read_row.shape, dtype=tl.float32)
    for tap in tl.static_range(4):
        offset, weight, counts = _tap(read_row, read_column, real, height, width, tap)
        total += weight * tl.load(source + offset, mask=counts, other=0.0).to(tl.float32)
    return total


@triton.jit
def _transform(
    x,
    kinds,
    uniform,
    out,
    draws,
    sources,
    each: tl.constexpr,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    pixels: tl.constexpr,
    brightness: tl.constexpr,
    saturation: tl.constexpr,
    contrast: tl.constexpr,
    reach_rows: tl.constexpr,
    reach_columns: tl.constexpr,
    hidden_rows: tl.constexpr,
    hidden_columns: tl.constexpr,
    scale: tl.constexpr,
    angle: tl.constexpr,
    backward: tl.constexpr,
):
    """y of one image from ``x``; backward, ``x`` is dy and dx is added to ``out``. Image i is made of i % sources."""
    image = tl.program_id(0)
    drawn = image * each
    kind = tl.load(kinds + drawn)
    u0 = tl.load(uniform + drawn)
    u1 = tl.load(uniform + draws + drawn)
    u2 = tl.load(uniform + 2 * draws + drawn)
    p = tl.arange(0, pixels)
    real = p < height * width
    row = p // width
    column = p % width
    read_row, read_column, seen = _place(
        kind, u0, u1, row, column, height, width,
        reach_rows, reach_columns, hidden_rows, hidden_columns, scale, angle,
    )  # fmt: skip
    size: tl.constexpr = channels * height * width
    made = image.to(tl.int64) * size
    source = (image % sources).to(tl.int64) * size
    incoming = x + (made if backward else source)
    grey = tl.zeros((pixels,), dtype=tl.float32)
    for channel in tl.static_range(channels):
        grey += tl.load(incoming + channel * height * width + p, mask=real, other=0.0).to(tl.float32)
    grey /= channels
    level = tl.sum(grey, 0) / (height * width)
    spread = 1 + (u1 - 0.5) * saturation
    stretch = 1 + (u2 - 0.5) * (2 * contrast)
    constant = stretch * (1 - spread) * grey + (1 - stretch) * level
    if not backward:
        constant += (u0 - 0.5) * brightness
    for channel in tl.static_range(channels):
        plane = channel * height * width
        own = tl.load(incoming + plane + p, mask=real, other=0.0).to(tl.float32)
        coloured = stretch * spread * own + constant
        if backward:
            pulled = tl.where(kind == 0, coloured, seen * own)
            for tap in tl.static_range(4):
                offset, weight, counts = _tap(read_row, read_column, real, height, width, tap)
                tl.atomic_add(out + source + plane + offset, weight * pulled, mask=counts, sem="relaxed")
        else:
            moved = seen * _read(incoming + plane, read_row, read_column, real, height, width)
            tl.store(out + made + plane + p, tl.where(kind == 0, coloured, moved).to(out.dtype.element_ty), mask=real)


class Transformed(torch.autograd.Function):
    """Images (count, channels, height, width) made of ``count`` / n of each of n sources, one after another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kinds: Tensor, uniform: Tensor, count: int, strengths: Strengths) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(kinds, uniform)
        ctx.shape, ctx.dtype, ctx.strengths = x.shape, x.dtype, strengths
        out = x.new_empty(count, *x.shape[1:])
        _launch(x, kinds, uniform, out, count, len(x), strengths, backward=False)
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        kinds, uniform = ctx.saved_tensors
        given = outputs[0].contiguous()
        dx = torch.zeros(ctx.shape, device=given.device, dtype=torch.float32)
        _launch(given, kinds, uniform, dx, len(given), len(dx), ctx.strengths, backward=True)
        return dx.to(ctx.dtype), None, None, None, None


def _launch(
    x: Tensor,
    kinds: Tensor,
    uniform: Tensor,
    out: Tensor,
    count: int,
    sources: int,
    strengths: Strengths,
    backward: bool,
) -> None:
    channels, height, width = x.shape[1:]
    pixels = triton.next_power_of_2(height * width)
    _transform[(count,)](
        x, kinds, uniform, out, len(kinds), sources, int(len(kinds) > 1), channels, height, width, pixels,
        strengths.brightness, strengths.saturation, strengths.contrast,
        pixels_of(height, strengths.crop), pixels_of(width, strengths.crop),
        pixels_of(height, strengths.cutout), pixels_of(width, strengths.cutout),
        strengths.scale, math.radians(strengths.rotate), backward,
        num_warps=8 if pixels >= 2048 else 4,
    )  # fmt: skip


@dataclass(frozen=True)
class FusedAugmentation:
    """The same distribution of transformations as ``plain`` draws, with its kinds drawn on the device."""

    plain: Augmentation

    @property
    def kinds(self) -> Sequence[str]:
        return self.plain.kinds

    def draw(self, count: int, randomness: Randomness) -> Transformation:
        groups = count if self.plain.mixed else 1
        return self._apply(self.draw_kinds(groups, randomness.device).expand(count), randomness.device)

    def draw_steps(self, steps: int, count: int, randomness: Randomness) -> Transformation:
        generator = randomness.device
        kinds = self.draw_kinds(steps * count if self.plain.mixed else steps, generator)
        uniform = torch.rand(3, steps * count, generator=generator, device=generator.device)

        def apply(x: Tensor) -> Tensor:
            shape, made = x.shape, math.prod(x.shape[:3])
            own = kinds if self.plain.mixed else kinds[None, :, None].expand(shape[:3]).reshape(-1)
            seen = x[0, 0] if shape[0] == 1 and x.stride(1) == 0 else x.flatten(0, 2)
            return self._transformed(seen, own, uniform, made).view(shape)

        return apply

    def draw_kind(self, kind: str, count: int, generator: torch.Generator) -> Transformation:
        number = torch.full((count,), KINDS.index(kind), device=generator.device, dtype=torch.int32)
        return self._apply(number, generator)

    def draw_kinds(self, count: int, generator: torch.Generator) -> Tensor:
        """Numbers of kinds (count,): any, each by itself, or, mixed, as evenly as their number allows."""
        device, known = generator.device, self._numbers(generator.device)
        if not self.plain.mixed:
            return known[torch.randint(len(known), (count,), generator=generator, device=device)]
        order = torch.rand(len(known), generator=generator, device=device).argsort()
        turn = torch.rand(count, generator=generator, device=device).argsort() % len(known)
        return known[order[turn]]

    def _numbers(self, device: torch.device) -> Tensor:
        """Those of the kinds that are drawn, without a copy from the host."""
        every = torch.arange(len(KINDS), device=device, dtype=torch.int32)
        return torch.cat([every[KINDS.index(kind)][None] for kind in self.kinds])

    def _apply(self, kinds: Tensor, generator: torch.Generator) -> Transformation:
        uniform = torch.rand(3, len(kinds), generator=generator, device=generator.device)
        return lambda x: self._transformed(x, kinds, uniform, len(x))

    def _transformed(self, x: Tensor, kinds: Tensor, uniform: Tensor, count: int) -> Tensor:
        """The kernel reads a kind for each image; that of a batch or of a single step is spread out for it."""
        made: Tensor = Transformed.apply(x, kinds.contiguous(), uniform, count, self.plain.strengths)
        return made


def fused_augmentation(augmentation: AnyAugmentation | None, shape: Sequence[int]) -> AnyAugmentation | None:
    """The kernel's form of an augmentation of images of this shape, or the augmentation itself where it has none."""
    height, width = shape[-2:]
    fits = min(height, width) > 1 and height * width <= MOST_PIXELS
    return FusedAugmentation(augmentation) if type(augmentation) is Augmentation and fits else augmentation
