"""Triton kernels for a ConvNet's first block: convolution of few channels, norm, ReLU and pooling in one pass each way.

The convolution z_cj = w_c . t_j sees each pixel j through its patch t_j of 3x3 pixels, so short a vector that z is
computed again wherever it is needed and never stored. With a one appended to each patch, all that the norm asks of z
follows from the image's Gram matrix S = sum_j t_j t_j^T, with m its column that belongs to the ones, and N pixels:

    mean_c = w_c . m / N,      var_c = w_c^T S w_c / N - mean_c^2

Backward, with d as in ``blocks`` and D_c = sum_j d_cj t_j, whose last entry is sum_j d_cj:

    sum_j d_cj z_cj = w_c . D_c,      dz_cj = a_c d_cj + u_c z_cj + v_c
    dw_c = a_c D_c + u_c S w_c + v_c m,      dt_j = sum_c dz_cj w_c

and a pixel of the image gathers what the nine patches around it give. Patches and Gram matrices are those of the images
alone, and so are made once for all steps and chains that see them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.backends.fused.blocks import EPSILON, slope_of_gradient, slope_of_norm, window_pixel
from pseudocoresets.backends.fused.chip import shared_memory, spread_over_chip
from pseudocoresets.backends.fused.layout import Layout

FOLDED_PIXELS = 256
UNFOLDED_ROWS = 64
MOST_CHANNELS, FEWER_CHANNELS = 128, 32
SHARED_MEMORY_OF_ACTIVATIONS = 160 * 1024
"""Bytes that a program of the most channels needs where activations have gradients of their own; 116 to 132 KiB."""


@dataclass(frozen=True)
class Patches:
    """The patches of images, pixels in the order in which they are pooled, and their Gram matrices."""

    values: Tensor
    """(..., images, 4, pooled pixels, taps): the four pixels of each pooled one, zeros after the appended one."""
    gram: Tensor
    """(..., images, taps, taps), float32."""
    inputs: int
    """Channels of the images."""
    padding: int

    def at(self, *index: int) -> Patches:
        """Those of one step or source."""
        return replace(self, values=self.values[index], gram=self.gram[index])

    def fill(self, x: Tensor) -> None:
        """Write the patches of images (..., channels, height, width) of any strides, and their Gram matrices."""
        x = x.reshape(-1, *x.shape[-3:])
        pooled_side = math.isqrt(self.values.shape[-2])
        _unfold[(len(x),)](
            x, *x.stride(), self.values, self.gram, x.shape[2], self.padding, self.inputs, _taps(self.inputs),
            pooled_side, UNFOLDED_ROWS, num_warps=4, num_stages=1,
        )  # fmt: skip


class Tile(NamedTuple):
    """What a program holds at once: ``rows`` pooled pixels of ``block`` channels, in so many warps."""

    rows: int
    block: int
    warps: int


@triton.jit
def _unfold(
    x,
    x_image,
    x_channel,
    x_row,
    x_column,
    values,
    gram,
    side: tl.constexpr,
    padding: tl.constexpr,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    pooled_side: tl.constexpr,
    rows: tl.constexpr,
):
    """One image's patches, in rounds of ``rows`` pooled pixels."""
    image = tl.program_id(0).to(tl.int64)
    quarter: tl.constexpr = pooled_side * pooled_side
    x += image * x_image
    values += image * (4 * quarter * taps)
    k = tl.arange(0, taps)
    total = tl.zeros((taps, taps), dtype=tl.float32)
    for start in range(0, 4 * quarter, rows):
        place = start + tl.arange(0, rows)
        sub = place // quarter
        q = place % quarter
        in_row = ((q // pooled_side) * 2 + sub // 2 - padding)[:, None] + (k // (3 * inputs))[None, :]
        in_column = ((q % pooled_side) * 2 + sub % 2 - padding)[:, None] + ((k // inputs) % 3)[None, :]
        inside = (in_row >= 0) & (in_row < side) & (in_column >= 0) & (in_column < side)
        real = place[:, None] < 4 * quarter
        offset = in_row * x_row + in_column * x_column + ((k % inputs) * x_channel)[None, :]
        patch = tl.load(x + offset, mask=inside & real & (k[None, :] < 9 * inputs), other=0.0)
        patch = tl.where(real & (k[None, :] == 9 * inputs), 1.0, patch).to(values.dtype.element_ty)
        tl.store(values + place[:, None] * taps + k[None, :], patch, mask=real)
        total += tl.dot(tl.trans(patch), patch)
    tl.store(gram + image * (taps * taps) + k[:, None] * taps + k[None, :], total)


@triton.jit
def _weights(weight, c, inputs: tl.constexpr, taps: tl.constexpr):
    """The block's weights, (taps, channels)."""
    k = tl.arange(0, taps)
    return tl.load(weight + c[None, :] * (9 * inputs) + k[:, None], mask=k[:, None] < 9 * inputs, other=0.0)


@triton.jit
def _first_block(
    values,
    gram,
    weight,
    gamma,
    beta,
    out,
    out_image,
    out_channel,
    out_pixel,
    means,
    rates,
    activation,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
    epsilon: tl.constexpr,
    keep: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * block + tl.arange(0, block)
    k = tl.arange(0, taps)
    quarter: tl.constexpr = pooled_side * pooled_side
    w = _weights(weight, c, inputs, taps)
    full = w.to(tl.float32)
    s = tl.load(gram + image * (taps * taps) + k[:, None] * taps + k[None, :])
    m = tl.load(gram + image * (taps * taps) + 9 * inputs * taps + k)
    mean = tl.sum(full * m[:, None], 0) / (4 * quarter)
    square = tl.sum(full * tl.dot(s, full, input_precision="ieee"), 0) / (4 * quarter)
    rate = 1.0 / tl.sqrt(tl.maximum(square - mean * mean, 0.0) + epsilon)
    tl.store(means + image * channels + c, mean)
    tl.store(rates + image * channels + c, rate)
    a, b = slope_of_norm(tl.load(gamma + c), tl.load(beta + c), mean, rate)
    values += image * (4 * quarter * taps)
    activation += image * (4 * quarter * channels)
    out += image * out_image
    for start in range(0, quarter, rows):
        q = start + tl.arange(0, rows)
        real = q[:, None] < quarter
        pooled = tl.zeros((rows, block), dtype=tl.float32)
        for sub in tl.static_range(4):
            patch = tl.load(values + (sub * quarter + q[:, None]) * taps + k[None, :], mask=real, other=0.0)
            z = tl.maximum(a[None, :] * tl.dot(patch, w) + b[None, :], 0.0)
            pooled += z
            if keep:
                kept = activation + (window_pixel(q, sub, pooled_side) * channels)[:, None] + c[None, :]
                tl.store(kept, z.to(activation.dtype.element_ty), mask=real)
        target = out + c[None, :] * out_channel + (q * out_pixel)[:, None]
        tl.store(target, (pooled * 0.25).to(out.dtype.element_ty), mask=real)


@triton.jit
def _first_block_backward(
    values,
    gram,
    weight,
    gamma,
    beta,
    means,
    rates,
    gradient,
    gradient_image,
    gradient_channel,
    gradient_pixel,
    dactivation,
    dweight,
    dgamma,
    dbeta,
    slopes,
    shifts,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
    seen: tl.constexpr,
    of_weights: tl.constexpr,
    of_images: tl.constexpr,
):
    """D, and all that follows from it: dgamma, dbeta, dW, and u and v for the patches' gradient."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * block + tl.arange(0, block)
    k = tl.arange(0, taps)
    quarter: tl.constexpr = pooled_side * pooled_side
    w = tl.load(weight + c[:, None] * (9 * inputs) + k[None, :], mask=k[None, :] < 9 * inputs, other=0.0)
    mean = tl.load(means + image * channels + c)
    rate = tl.load(rates + image * channels + c)
    a, b = slope_of_norm(tl.load(gamma + c), tl.load(beta + c), mean, rate)
    gradient += image * gradient_image
    values += image * (4 * quarter * taps)
    dactivation += image * (4 * quarter * channels)
    total = tl.zeros((block, taps), dtype=tl.float32)
    for start in range(0, quarter, rows):
        q = start + tl.arange(0, rows)
        real = q < quarter
        source = gradient + c[:, None] * gradient_channel + (q * gradient_pixel)[None, :]
        g = tl.load(source, mask=real[None, :], other=0.0).to(tl.float32) * 0.25
        for sub in tl.static_range(4):
            patch = tl.load(values + (sub * quarter + q[:, None]) * taps + k[None, :], mask=real[:, None], other=0.0)
            d = g
            if seen:
                place = (window_pixel(q, sub, pooled_side) * channels)[None, :] + c[:, None]
                d += tl.load(dactivation + place, mask=real[None, :], other=0.0).to(tl.float32)
            d = tl.where(a[:, None] * tl.dot(w, tl.trans(patch)) + b[:, None] > 0, d, 0.0)
            total += tl.dot(d.to(patch.dtype), patch)
    full = w.to(tl.float32)
    sum_d = tl.sum(tl.where(k[None, :] == 9 * inputs, total, 0.0), 1)
    sum_dz = tl.sum(total * full, 1)
    of_beta, of_gamma, u, v = slope_of_gradient(a, mean, rate, sum_d, sum_dz, 4 * quarter)
    tl.atomic_add(dbeta + c, of_beta, sem="relaxed")
    tl.atomic_add(dgamma + c, of_gamma, sem="relaxed")
    if of_images:
        tl.store(slopes + image * channels + c, u)
        tl.store(shifts + image * channels + c, v)
    if of_weights:
        s = tl.load(gram + image * (taps * taps) + k[:, None] * taps + k[None, :])
        m = tl.load(gram + image * (taps * taps) + 9 * inputs * taps + k)
        found = a[:, None] * total + v[:, None] * m[None, :]
        found += u[:, None] * tl.dot(full, s, input_precision="ieee")
        target = dweight + c[:, None] * (9 * inputs) + k[None, :]
        tl.atomic_add(target, found, mask=k[None, :] < 9 * inputs, sem="relaxed")


@triton.jit
def _patch_gradient(
    values,
    weight,
    gamma,
    beta,
    means,
    rates,
    slopes,
    shifts,
    gradient,
    gradient_image,
    gradient_channel,
    gradient_pixel,
    dactivation,
    dvalues,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
    seen: tl.constexpr,
):
    """dt of one sub-pixel of some pooled pixels: the sum over all channels, a block of them after another."""
    image = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, taps)
    quarter: tl.constexpr = pooled_side * pooled_side
    sub = tl.program_id(2)
    q = tl.program_id(1) * rows + tl.arange(0, rows)
    real = q[:, None] < quarter
    place = image * (4 * quarter * taps) + (sub * quarter + q[:, None]) * taps + k[None, :]
    patch = tl.load(values + place, mask=real, other=0.0)
    gradient += image * gradient_image
    dactivation += image * (4 * quarter * channels)
    pixel = window_pixel(q, sub, pooled_side)
    total = tl.zeros((rows, taps), dtype=tl.float32)
    for start in range(0, channels, block):
        c = start + tl.arange(0, block)
        w = _weights(weight, c, inputs, taps)
        at = image * channels + c
        mean = tl.load(means + at)
        a, b = slope_of_norm(tl.load(gamma + c), tl.load(beta + c), mean, tl.load(rates + at))
        source = gradient + c[None, :] * gradient_channel + (q * gradient_pixel)[:, None]
        d = tl.load(source, mask=real, other=0.0).to(tl.float32) * 0.25
        if seen:
            where = (pixel * channels)[:, None] + c[None, :]
            d += tl.load(dactivation + where, mask=real, other=0.0).to(tl.float32)
        z = tl.dot(patch, w)
        d = tl.where(a[None, :] * z + b[None, :] > 0, d, 0.0)
        dz = a[None, :] * d + (tl.load(slopes + at)[None, :] * z + tl.load(shifts + at)[None, :])
        total += tl.dot(dz.to(patch.dtype), tl.trans(w))
    tl.store(dvalues + place, total.to(dvalues.dtype.element_ty), mask=real)


@triton.jit
def _fold(
    dvalues,
    out,
    out_image,
    out_channel,
    out_row,
    out_column,
    pixels,
    side: tl.constexpr,
    padding: tl.constexpr,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    rows: tl.constexpr,
):
    """dx at each pixel of the images: the sum of what the nine patches that see it give."""
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    real = pixel < pixels
    image = (pixel // (side * side)).to(tl.int64)
    row = (pixel // side) % side
    column = pixel % side
    pooled_side: tl.constexpr = (side + 2 * padding - 2) // 2
    for channel in tl.static_range(inputs):
        total = tl.zeros((rows,), dtype=tl.float32)
        for tap in tl.static_range(9):
            seen_row = row - tap // 3 + padding
            seen_column = column - tap % 3 + padding
            inside = real & (seen_row >= 0) & (seen_row < 2 * pooled_side)
            inside = inside & (seen_column >= 0) & (seen_column < 2 * pooled_side)
            sub = (seen_row % 2) * 2 + seen_column % 2
            q = (seen_row // 2) * pooled_side + seen_column // 2
            place = ((image * 4 + sub) * (pooled_side * pooled_side) + q) * taps
            total += tl.load(dvalues + place + (tap * inputs + channel), mask=inside, other=0.0).to(tl.float32)
        target = out + image * out_image + channel * out_channel + row * out_row + column * out_column
        tl.store(target, total.to(out.dtype.element_ty), mask=real)


def empty_patches(layout: Layout, *leading: int, device: torch.device, dtype: torch.dtype) -> Patches:
    """Room for the patches of (..., images) images."""
    first = layout.blocks[0]
    taps = _taps(first.inputs)
    values = torch.zeros(*leading, 4, (first.side // 2) ** 2, taps, device=device, dtype=dtype)
    return Patches(values, torch.zeros(*leading, taps, taps, device=device), first.inputs, first.padding)


def patches_of(x: Tensor, layout: Layout, dtype: torch.dtype) -> Patches:
    """The patches of images (m, channels, height, width)."""
    found = empty_patches(layout, len(x), device=x.device, dtype=dtype)
    found.fill(x)
    return found


def first_block(
    patches: Patches,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    out: Tensor,
    statistics: Tensor,
    activation: Tensor | None = None,
) -> None:
    """Write p into ``out``; see ``blocks.norm_relu_pool``."""
    images, channels, pooled_side = out.shape[:3]
    tile = _tile(spread_over_chip(images * channels, weight.device), channels, pooled_side)
    _first_block[(images, channels // tile.block)](
        patches.values, patches.gram, weight, gamma, beta, out, out.stride(0), out.stride(1), out.stride(3),
        *statistics,
        out if activation is None else activation, patches.inputs, _taps(patches.inputs), channels, pooled_side,
        tile.rows, tile.block, EPSILON, activation is not None, num_warps=tile.warps,
    )  # fmt: skip


def first_block_backward(
    patches: Patches,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    statistics: Tensor,
    gradient: Tensor,
    dweight: Tensor | None,
    dgamma: Tensor,
    dbeta: Tensor,
    dx: Tensor | None,
    dactivation: Tensor | None = None,
) -> None:
    """Add to dgamma, dbeta and, if wanted, to dW (channels, 3, 3, inputs); write dx, of any strides, if wanted."""
    images, channels, pooled_side = gradient.shape[:3]
    fits = dactivation is None or shared_memory(weight.device) >= SHARED_MEMORY_OF_ACTIVATIONS
    values = spread_over_chip(images * channels, weight.device)
    tile = _tile(values, channels, pooled_side, MOST_CHANNELS if fits else FEWER_CHANNELS)
    lines = torch.empty_like(statistics) if dx is not None else statistics
    shape = (patches.inputs, _taps(patches.inputs), channels, pooled_side)
    strides = (gradient.stride(0), gradient.stride(1), gradient.stride(3))
    looked_at = gradient if dactivation is None else dactivation
    _first_block_backward[(images, channels // tile.block)](
        patches.values, patches.gram, weight, gamma, beta, *statistics, gradient, *strides, looked_at,
        gamma if dweight is None else dweight, dgamma, dbeta, *lines, *shape, tile.rows, tile.block,
        dactivation is not None, dweight is not None, dx is not None, num_warps=tile.warps,
    )  # fmt: skip
    if dx is None:
        return
    dvalues = torch.empty_like(patches.values)
    tile = _gradient_tile(channels, pooled_side)
    _patch_gradient[(images, triton.cdiv(pooled_side * pooled_side, tile.rows), 4)](
        patches.values, weight, gamma, beta, *statistics, *lines, gradient, *strides, looked_at, dvalues, *shape,
        tile.rows, tile.block, dactivation is not None, num_warps=tile.warps,
    )  # fmt: skip
    side, pixels = dx.shape[2], images * dx.shape[2] * dx.shape[3]
    _fold[(triton.cdiv(pixels, FOLDED_PIXELS),)](
        dvalues, dx, *dx.stride(), pixels, side, patches.padding, *shape[:2], FOLDED_PIXELS, num_warps=4
    )


def _taps(inputs: int) -> int:
    """The nine pixels of a patch, times its channels, and a one, padded to what a matrix product wants."""
    return int(max(16, triton.next_power_of_2(9 * inputs + 1)))


def _tile(values: int, channels: int, pooled_side: int, most_channels: int = MOST_CHANNELS) -> Tile:
    """Many channels, which share the patches, but enough programs to fill the chip."""
    most = 16 if values < 8192 else 64 if values < 32768 else 128
    block = min(most, most_channels, channels & -channels)
    rows = max(16, min(32 if block == 128 else 64, pooled_side * pooled_side))
    return Tile(rows, block, 4)


def _gradient_tile(channels: int, pooled_side: int) -> Tile:
    return Tile(max(16, min(64, pooled_side * pooled_side)), min(64, channels & -channels), 4)
