"""Triton kernels for a ConvNet's first block: convolution of few channels, norm, ReLU and pooling in one pass each way.

The convolution's output z is never stored: a patch of 3x3 pixels and three channels is so small a product with the
weights that z is computed again wherever it is needed. Forwards that is twice, for the norm's mean and rate and for
the pooled activations; backwards as well, for the sums of d and d z and for dz (see ``blocks``), which goes at once
into the gradients

    dW = sum_j dz_j patch_j^T,      dpatch_j = W^T dz_j

of weights and patches. A pixel of the image gathers what the nine patches around it give.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.backends.fused.blocks import EPSILON, slope_of_gradient, slope_of_norm, window_pixel

FOLDED_PIXELS = 256


@triton.jit
def _patches(
    x,
    q,
    sub: tl.constexpr,
    side: tl.constexpr,
    padding: tl.constexpr,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    pooled_side: tl.constexpr,
):
    """The patches (pooled pixels, taps) of sub-pixel ``sub``; those of other pixels and taps are zero."""
    k = tl.arange(0, taps)
    row = (q // pooled_side) * 2 + (sub // 2 - padding)
    column = (q % pooled_side) * 2 + (sub % 2 - padding)
    in_row = row[:, None] + (k // (3 * inputs))[None, :]
    in_column = column[:, None] + ((k // inputs) % 3)[None, :]
    inside = (in_row >= 0) & (in_row < side) & (in_column >= 0) & (in_column < side)
    inside = inside & (k[None, :] < 9 * inputs) & (q[:, None] < pooled_side * pooled_side)
    offset = (in_row * side + in_column) * inputs + (k % inputs)[None, :]
    return tl.load(x + offset, mask=inside, other=0.0)


@triton.jit
def _weights(weight, c, inputs: tl.constexpr, taps: tl.constexpr):
    """The block's weights, (taps, channels)."""
    k = tl.arange(0, taps)
    return tl.load(weight + c[None, :] * (9 * inputs) + k[:, None], mask=k[:, None] < 9 * inputs, other=0.0)


@triton.jit
def _first_block(
    x,
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
    side: tl.constexpr,
    padding: tl.constexpr,
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
    quarter: tl.constexpr = pooled_side * pooled_side
    x += image * (side * side * inputs)
    w = _weights(weight, c, inputs, taps)
    total = tl.zeros((rows, block), dtype=tl.float32)
    squares = tl.zeros((rows, block), dtype=tl.float32)
    for start in range(0, quarter, rows):
        q = start + tl.arange(0, rows)
        for sub in tl.static_range(4):
            z = tl.dot(_patches(x, q, sub, side, padding, inputs, taps, pooled_side), w)
            total += z
            squares += z * z
    mean = tl.sum(total, 0) / (4 * quarter)
    variance = tl.maximum(tl.sum(squares, 0) / (4 * quarter) - mean * mean, 0.0)
    rate = 1.0 / tl.sqrt(variance + epsilon)
    tl.store(means + image * channels + c, mean)
    tl.store(rates + image * channels + c, rate)
    a, b = slope_of_norm(tl.load(gamma + c), tl.load(beta + c), mean, rate)
    for start in range(0, quarter, rows):
        q = start + tl.arange(0, rows)
        pooled = tl.zeros((rows, block), dtype=tl.float32)
        for sub in tl.static_range(4):
            z = tl.dot(_patches(x, q, sub, side, padding, inputs, taps, pooled_side), w)
            z = tl.maximum(a[None, :] * z + b[None, :], 0.0)
            pooled += z
            if keep:
                place = (window_pixel(q, sub, pooled_side) * channels)[:, None] + c[None, :]
                kept = activation + image * (4 * quarter * channels) + place
                tl.store(kept, z.to(activation.dtype.element_ty), mask=q[:, None] < quarter)
        target = out + image * out_image + c[None, :] * out_channel + (q * out_pixel)[:, None]
        tl.store(target, (pooled * 0.25).to(out.dtype.element_ty), mask=q[:, None] < quarter)


@triton.jit
def _first_block_backward(
    x,
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
    dpatches,
    side: tl.constexpr,
    padding: tl.constexpr,
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
    image = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    c = group * block + tl.arange(0, block)
    k = tl.arange(0, taps)
    quarter: tl.constexpr = pooled_side * pooled_side
    x += image * (side * side * inputs)
    w = _weights(weight, c, inputs, taps)
    mean = tl.load(means + image * channels + c)
    rate = tl.load(rates + image * channels + c)
    a, b = slope_of_norm(tl.load(gamma + c), tl.load(beta + c), mean, rate)
    source = gradient + image * gradient_image + c[None, :] * gradient_channel
    dactivation += image * (4 * quarter * channels)
    dpatches += image * (4 * quarter * (channels // block) * taps)
    total_d = tl.zeros((rows, block), dtype=tl.float32)
    total_dz = tl.zeros((rows, block), dtype=tl.float32)
    for start in range(0, quarter, rows):
        q = start + tl.arange(0, rows)
        real = q[:, None] < quarter
        g = tl.load(source + (q * gradient_pixel)[:, None], mask=real, other=0.0).to(tl.float32) * 0.25
        for sub in tl.static_range(4):
            z = tl.dot(_patches(x, q, sub, side, padding, inputs, taps, pooled_side), w)
            d = g
            if seen:
                place = (window_pixel(q, sub, pooled_side) * channels)[:, None] + c[None, :]
                d += tl.load(dactivation + place, mask=real, other=0.0).to(tl.float32)
            d = tl.where(a[None, :] * z + b[None, :] > 0, d, 0.0)
            total_d += d
            total_dz += d * z
    of_beta, of_gamma, u, v = slope_of_gradient(a, mean, rate, tl.sum(total_d, 0), tl.sum(total_dz, 0), 4 * quarter)
    tl.atomic_add(dbeta + c, of_beta, sem="relaxed")
    tl.atomic_add(dgamma + c, of_gamma, sem="relaxed")
    total = tl.zeros((block, taps), dtype=tl.float32)
    for start in range(0, quarter, rows):
        q = start + tl.arange(0, rows)
        real = q[:, None] < quarter
        g = tl.load(source + (q * gradient_pixel)[:, None], mask=real, other=0.0).to(tl.float32) * 0.25
        for sub in tl.static_range(4):
            patch = _patches(x, q, sub, side, padding, inputs, taps, pooled_side)
            z = tl.dot(patch, w)
            d = g
            pixel = window_pixel(q, sub, pooled_side)
            if seen:
                place = (pixel * channels)[:, None] + c[None, :]
                d += tl.load(dactivation + place, mask=real, other=0.0).to(tl.float32)
            d = tl.where(a[None, :] * z + b[None, :] > 0, d, 0.0)
            dz = tl.where(real, a[None, :] * d + (u[None, :] * z + v[None, :]), 0.0).to(patch.dtype)
            if of_weights:
                total += tl.dot(tl.trans(dz), patch)
            if of_images:
                row = (pixel * (channels // block) + group) * taps
                dpatch = tl.dot(dz, tl.trans(w)).to(dpatches.dtype.element_ty)
                tl.store(dpatches + row[:, None] + k[None, :], dpatch, mask=real)
    if of_weights:
        target = dweight + c[:, None] * (9 * inputs) + k[None, :]
        tl.atomic_add(target, total, mask=k[None, :] < 9 * inputs, sem="relaxed")


@triton.jit
def _fold_patches(
    patches,
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
    groups: tl.constexpr,
    rows: tl.constexpr,
):
    """dx at each pixel of the images: the sum of what the nine patches that see it give, in all groups of channels."""
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    real = pixel < pixels
    image = (pixel // (side * side)).to(tl.int64)
    row = (pixel // side) % side
    column = pixel % side
    out_side: tl.constexpr = side + 2 * padding - 2
    for channel in tl.static_range(inputs):
        total = tl.zeros((rows,), dtype=tl.float32)
        for tap in tl.static_range(9):
            seen_row = row - tap // 3 + padding
            seen_column = column - tap % 3 + padding
            inside = real & (seen_row >= 0) & (seen_row < out_side) & (seen_column >= 0) & (seen_column < out_side)
            place = (image * (out_side * out_side) + seen_row * out_side + seen_column) * (groups * taps)
            for group in range(groups):
                value = patches + place + (group * taps + tap * inputs + channel)
                total += tl.load(value, mask=inside, other=0.0).to(tl.float32)
        target = out + image * out_image + channel * out_channel + row * out_row + column * out_column
        tl.store(target, total.to(out.dtype.element_ty), mask=real)


class Tile(NamedTuple):
    """What a program holds at once: ``rows`` pooled pixels of ``block`` channels, in so many warps."""

    rows: int
    block: int
    warps: int


def first_block(
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    out: Tensor,
    statistics: Tensor,
    padding: int,
    activation: Tensor | None = None,
) -> None:
    """Write p of a channels-last batch with few channels into ``out``; see ``blocks.norm_relu_pool``."""
    tile = _tile(*out.shape[:3])
    _first_block[(len(x), out.shape[1] // tile.block)](
        x, weight, gamma, beta, out, out.stride(0), out.stride(1), out.stride(3), *statistics,
        out if activation is None else activation, **_shape(x, out, padding),
        rows=tile.rows, block=tile.block, epsilon=EPSILON, keep=activation is not None, num_warps=tile.warps,
    )  # fmt: skip


def first_block_backward(
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    statistics: Tensor,
    gradient: Tensor,
    dweight: Tensor | None,
    dgamma: Tensor,
    dbeta: Tensor,
    dpatches: Tensor | None,
    padding: int,
    dactivation: Tensor | None = None,
) -> None:
    """Add to dgamma, dbeta and, if wanted, to dW (channels, 3, 3, inputs); write the patches' gradient if wanted.

    ``dpatches``, from ``patch_gradient``, is for ``fold_patches``.
    """
    tile = _tile(*gradient.shape[:3])
    _first_block_backward[(len(x), gradient.shape[1] // tile.block)](
        x, weight, gamma, beta, *statistics, gradient, gradient.stride(0), gradient.stride(1), gradient.stride(3),
        gradient if dactivation is None else dactivation, gamma if dweight is None else dweight, dgamma, dbeta,
        gradient if dpatches is None else dpatches, **_shape(x, gradient, padding),
        rows=tile.rows, block=tile.block, seen=dactivation is not None, of_weights=dweight is not None,
        of_images=dpatches is not None, num_warps=tile.warps,
    )  # fmt: skip


def patch_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Room for the gradients of all patches of ``x``, by groups of channels, for a ``gradient`` of what is pooled."""
    images, channels, pooled_side = gradient.shape[:3]
    groups = channels // _tile(images, channels, pooled_side).block
    return x.new_empty(images, 4 * pooled_side * pooled_side, groups, _taps(x.shape[1]))


def fold_patches(dpatches: Tensor, dx: Tensor, padding: int) -> None:
    """Write the gradient in the images (m, inputs, side, side), of any strides."""
    images, inputs, side = dx.shape[:3]
    pixels = images * side * side
    _fold_patches[(triton.cdiv(pixels, FOLDED_PIXELS),)](
        dpatches, dx, *dx.stride(), pixels, side, padding, inputs, dpatches.shape[3], dpatches.shape[2],
        FOLDED_PIXELS, num_warps=4,
    )  # fmt: skip


def _shape(x: Tensor, pooled: Tensor, padding: int) -> dict[str, Any]:
    inputs, side = x.shape[1:3]
    channels, pooled_side = pooled.shape[1:3]
    shape = {"side": side, "padding": padding, "inputs": inputs, "taps": _taps(inputs)}
    return shape | {"channels": channels, "pooled_side": pooled_side}


def _taps(inputs: int) -> int:
    """The nine pixels of a patch, times its channels, padded to what a matrix product wants."""
    return int(max(16, triton.next_power_of_2(9 * inputs)))


def _tile(images: int, channels: int, pooled_side: int) -> Tile:
    """Many channels, which share the patches, but enough programs to fill the chip."""
    rows = max(16, min(64, pooled_side * pooled_side))
    most = 16 if images * channels < 8192 else 64
    return Tile(rows, min(most, channels & -channels), 4)
