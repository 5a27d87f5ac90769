"""Triton kernels for a block with its convolution, for few images: one launch each way instead of two.

Few images do not fill the chip, and a kernel then costs some microseconds whatever it computes. A program that holds
all pixels of one image and a few channels, as ``blocks`` has them, can compute the convolution before the norm itself,

    z_jc = sum_{tap, k} h_{j + tap, k} W_{c, tap, k},

and on the way down the gradient of what a block gave, from the dz of the block above, before its own norm's gradient:

    g_qk = sum_{tap, c} dz_{q - tap, c} W_{c, tap, k}.

The gradient of the weight, over all images, is added up by several programs for each of its tiles:

    dW_{c, tap, k} = sum_j dz_jc h_{j + tap, k}.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.backends.fused.blocks import (
    EPSILON,
    pool_norms,
    slope_of_norm,
    spread_gradient,
    store_windows,
    window_pixel,
)
from pseudocoresets.backends.fused.chip import spread_over_chip
from pseudocoresets.backends.fused.first_block import Patches, add_patches, parameters_from_patches
from pseudocoresets.backends.fused.following import follow, launch_options
from pseudocoresets.backends.fused.head import Step, take_step
from pseudocoresets.backends.fused.layout import Layout

MOST_VALUES, MOST_VALUES_OF_WEIGHTS = 2560, 10_240
"""Channels of all images, beyond which cuDNN's convolutions, and its gradients of weights, are the faster ones."""
POOLED_SIDES = (4, 8)
WARPS, STAGES = 4, 3
PIXELS = 64
"""Of a program of a gradient in the input, at most."""


class Tile(NamedTuple):
    """Channels of a program, and terms of its sums that it multiplies at a time, at most."""

    block: int
    depth: int
    warps: int
    stages: int


class WeightTile(NamedTuple):
    """Of a weight's gradient, the pixels that are added at a time, and how many programs add up one tile."""

    rows: int
    columns: int
    pixels: int
    splits: int
    warps: int
    stages: int


WEIGHT_TILE = WeightTile(64, 64, 64, 256, WARPS, STAGES)
"""At most; the programs are those of all tiles, if they have so much work."""


@triton.jit
def _tap(below, pixel, tap, k, side: tl.constexpr, channels: tl.constexpr):
    """Channels ``k`` of what a tap of the kernel sees at each pixel: zero beyond the border."""
    row = pixel // side + tap // 3 - 1
    column = pixel % side + tap % 3 - 1
    inside = (row >= 0) & (row < side) & (column >= 0) & (column < side)
    place = ((row * side + column) * channels)[:, None] + k[None, :]
    return tl.load(below + place, mask=inside[:, None], other=0.0)


@triton.jit
def _small_block(
    below,
    weight,
    z,
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
    channels: tl.constexpr,
    chains: tl.constexpr,
    pooled_side: tl.constexpr,
    block: tl.constexpr,
    depth: tl.constexpr,
    epsilon: tl.constexpr,
    keep: tl.constexpr,
    early: tl.constexpr,
):
    follow(early)
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * block + tl.arange(0, block)
    quarter: tl.constexpr = pooled_side * pooled_side
    side: tl.constexpr = 2 * pooled_side
    chunks: tl.constexpr = inputs // depth
    q = tl.arange(0, quarter)
    pixel = window_pixel(q, 0, pooled_side)
    chain = tl.program_id(1) * block // (channels // chains)
    below += image * (side * side * chains * inputs) + chain * inputs
    weight += c[None, :] * (9 * inputs)
    z0 = tl.zeros((quarter, block), dtype=tl.float32)
    z1, z2, z3 = z0, z0, z0
    for step in range(9 * chunks):
        tap = step // chunks
        k = (step % chunks) * depth + tl.arange(0, depth)
        w = tl.load(weight + tap * inputs + k[:, None])
        z0 = tl.dot(_tap(below, pixel, tap, k, side, chains * inputs), w, z0, input_precision="ieee")
        z1 = tl.dot(_tap(below, pixel + 1, tap, k, side, chains * inputs), w, z1, input_precision="ieee")
        z2 = tl.dot(_tap(below, pixel + side, tap, k, side, chains * inputs), w, z2, input_precision="ieee")
        z3 = tl.dot(_tap(below, pixel + side + 1, tap, k, side, chains * inputs), w, z3, input_precision="ieee")
    store_windows(z, z0, z1, z2, z3, image, c, channels, pooled_side)
    kept: tl.constexpr = z.dtype.element_ty
    pool_norms(
        z0.to(kept).to(tl.float32), z1.to(kept).to(tl.float32), z2.to(kept).to(tl.float32), z3.to(kept).to(tl.float32),
        image, c, gamma, beta, out, out_image, out_channel, out_pixel, means, rates, activation,
        channels, pooled_side, epsilon, keep,
    )  # fmt: skip


@triton.jit
def _gradient_below(
    dz,
    weight,
    image,
    pixel,
    inputs: tl.constexpr,
    channels: tl.constexpr,
    chains: tl.constexpr,
    side: tl.constexpr,
    block: tl.constexpr,
    depth: tl.constexpr,
):
    """g of some pixels and the program's channels, given dz of a convolution with ``inputs`` channels per chain."""
    outputs: tl.constexpr = channels // chains
    chunks: tl.constexpr = outputs // depth
    chain = tl.program_id(1) * block // inputs
    dz += image * (side * side * channels) + chain * outputs
    weight += chain * (outputs * 9 * inputs) + ((tl.program_id(1) * block) % inputs + tl.arange(0, block))[None, :]
    g = tl.zeros((pixel.shape[0], block), dtype=tl.float32)
    for step in range(9 * chunks):
        tap = step // chunks
        k = (step % chunks) * depth + tl.arange(0, depth)
        w = tl.load(weight + (8 - tap) * inputs + k[:, None] * (9 * inputs))
        g = tl.dot(_tap(dz, pixel, tap, k, side, channels), w, g, input_precision="ieee")
    return g


@triton.jit
def _small_block_backward(
    dz_above,
    weight,
    z,
    gamma,
    beta,
    means,
    rates,
    dactivation,
    dz,
    dgamma,
    dbeta,
    channels_above: tl.constexpr,
    channels: tl.constexpr,
    chains: tl.constexpr,
    pooled_side: tl.constexpr,
    block: tl.constexpr,
    depth: tl.constexpr,
    seen: tl.constexpr,
    early: tl.constexpr,
):
    follow(early)
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * block + tl.arange(0, block)
    q = tl.arange(0, pooled_side * pooled_side)
    g = _gradient_below(
        dz_above, weight, image, q, channels // chains, channels_above, chains, pooled_side, block, depth
    )
    spread_gradient(
        g * 0.25, image, c, z, gamma, beta, means, rates, dactivation, dz, dgamma, dbeta, channels, pooled_side, seen
    )


@triton.jit
def _small_input_gradient(
    dz,
    weight,
    dbelow,
    inputs: tl.constexpr,
    channels: tl.constexpr,
    chains: tl.constexpr,
    side: tl.constexpr,
    pixels: tl.constexpr,
    block: tl.constexpr,
    depth: tl.constexpr,
    early: tl.constexpr,
):
    follow(early)
    parts: tl.constexpr = side * side // pixels
    image = (tl.program_id(0) // parts).to(tl.int64)
    pixel = (tl.program_id(0) % parts) * pixels + tl.arange(0, pixels)
    g = _gradient_below(dz, weight, image, pixel, inputs, channels, chains, side, block, depth)
    k = tl.program_id(1) * block + tl.arange(0, block)
    place = (image * (side * side) + pixel)[:, None] * (chains * inputs) + k[None, :]
    tl.store(dbelow + place, g.to(dbelow.dtype.element_ty))


@triton.jit
def _small_first_backward(
    dz,
    weight_above,
    values,
    gram,
    weight,
    gamma,
    beta,
    means,
    rates,
    dweight,
    dgamma,
    dbeta,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    channels: tl.constexpr,
    channels_above: tl.constexpr,
    chains: tl.constexpr,
    pooled_side: tl.constexpr,
    pixels: tl.constexpr,
    block: tl.constexpr,
    depth: tl.constexpr,
    early: tl.constexpr,
):
    """The first block's backward of some of its pooled pixels, whose gradient is that of the next convolution."""
    follow(early)
    quarter: tl.constexpr = pooled_side * pooled_side
    parts: tl.constexpr = quarter // pixels
    image = (tl.program_id(0) // parts).to(tl.int64)
    q = (tl.program_id(0) % parts) * pixels + tl.arange(0, pixels)
    c = tl.program_id(1) * block + tl.arange(0, block)
    k = tl.arange(0, taps)
    g = _gradient_below(
        dz, weight_above, image, q, channels // chains, channels_above, chains, pooled_side, block, depth
    )
    w = tl.load(weight + c[:, None] * (9 * inputs) + k[None, :], mask=k[None, :] < 9 * inputs, other=0.0)
    mean = tl.load(means + image * channels + c)
    rate = tl.load(rates + image * channels + c)
    a, b = slope_of_norm(tl.load(gamma + c), tl.load(beta + c), mean, rate)
    g = tl.trans(g.to(dz.dtype.element_ty)).to(tl.float32) * 0.25
    total = tl.zeros((block, taps), dtype=tl.float32)
    values += image * (4 * quarter * taps)
    total = add_patches(total, g, q, q >= 0, c, values, w, a, b, values, taps, channels, pooled_side, False)
    parameters_from_patches(
        total, image, c, gram, w, a, mean, rate, dweight, dgamma, dbeta, inputs, taps, 4 * quarter, True
    )


@triton.jit
def _weight_sums(
    dz,
    below,
    c,
    k,
    images,
    splits,
    inputs: tl.constexpr,
    channels: tl.constexpr,
    chains: tl.constexpr,
    side: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    pixels: tl.constexpr,
):
    """The program's tile of a weight's gradient, or its share of it."""
    tap = tl.program_id(2) % 9
    chain = tl.program_id(0) * rows // (channels // chains)
    below += chain * inputs
    chunks: tl.constexpr = side * side // pixels
    total = tl.zeros((rows, columns), dtype=tl.float32)
    for step in range(tl.program_id(2) // 9, images * chunks, splits):
        image = (step // chunks) * (side * side)
        pixel = (step % chunks) * pixels + tl.arange(0, pixels)
        d = tl.load(dz + ((image + pixel) * channels)[None, :] + c[:, None])
        h = _tap(below + image * (chains * inputs), pixel, tap, k, side, chains * inputs)
        total = tl.dot(d, h, total, input_precision="ieee")
    return total


@triton.jit
def _small_weight_gradient(
    dz,
    below,
    dweight,
    images,
    splits,
    inputs: tl.constexpr,
    channels: tl.constexpr,
    chains: tl.constexpr,
    side: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    pixels: tl.constexpr,
    early: tl.constexpr,
):
    follow(early)
    c = tl.program_id(0) * rows + tl.arange(0, rows)
    k = tl.program_id(1) * columns + tl.arange(0, columns)
    tap = tl.program_id(2) % 9
    total = _weight_sums(dz, below, c, k, images, splits, inputs, channels, chains, side, rows, columns, pixels)
    tl.atomic_add(dweight + c[:, None] * (9 * inputs) + tap * inputs + k[None, :], total, sem="relaxed")


@triton.jit
def _small_weight_step(
    dz,
    below,
    theta,
    velocity,
    compact,
    rates,
    seeds,
    stream,
    following,
    start,
    draws,
    images,
    inputs: tl.constexpr,
    channels: tl.constexpr,
    chains: tl.constexpr,
    side: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    pixels: tl.constexpr,
    last: tl.constexpr,
    early: tl.constexpr,
):
    """``head.update`` of the weight that begins at ``start``, with its draws behind the ``draws`` of the others."""
    follow(early)
    c = tl.program_id(0) * rows + tl.arange(0, rows)
    k = tl.program_id(1) * columns + tl.arange(0, columns)
    tap = tl.program_id(2)
    total = _weight_sums(dz, below, c, k, images, 1, inputs, channels, chains, side, rows, columns, pixels)
    z = tl.zeros((rows, columns), dtype=tl.float32)
    if tl.load(rates + 2) != 0:
        four = tl.program_id(1) * (columns // 4) + tl.arange(0, columns // 4)
        place = c[:, None] * (9 * inputs // 4) + tap * (inputs // 4) + four[None, :]
        z0, z1, z2, z3 = tl.randn4x(tl.load(seeds) + stream, draws + start // 4 + place)
        z = tl.reshape(tl.join(tl.join(z0, z1), tl.join(z2, z3)), (rows, columns))
    keep = last
    if not last:
        keep = tl.load(following + 3) != 0
    index = start + c[:, None] * (9 * inputs) + tap * inputs + k[None, :]
    take_step(theta, velocity, compact, index, index >= 0, total, z, rates, keep)


def suit(layout: Layout, images: int, device: torch.device, most_values: int) -> bool:
    """Whether all inner blocks are such that these kernels compute them, and have few enough values."""
    inner = layout.blocks[1:]
    values = spread_over_chip(images * max((block.channels for block in inner), default=0), device)
    return all(block.side // 2 in POOLED_SIDES for block in inner) and values <= most_values


def small_block(
    below: Tensor,
    weight: Tensor,
    chains: int,
    z: Tensor,
    gamma: Tensor,
    beta: Tensor,
    out: Tensor,
    statistics: Tensor,
    activation: Tensor | None = None,
    early: bool = False,
) -> None:
    """Write the convolution of ``below`` into ``z``, and what ``blocks.norm_relu_pool`` makes of it."""
    images, channels, pooled_side = out.shape[:3]
    inputs = below.shape[1] // chains
    tile = _up_tile(images * chains, channels // chains, pooled_side)
    _small_block[(images, channels // tile.block)](
        below, weight, z, gamma, beta, out, out.stride(0), out.stride(1), out.stride(3), *statistics,
        z if activation is None else activation,
        inputs, channels, chains, pooled_side, tile.block, math.gcd(inputs, tile.depth), EPSILON,
        activation is not None, early, num_warps=tile.warps, num_stages=tile.stages, **launch_options(early),
    )  # fmt: skip


def small_block_backward(
    dz_above: Tensor,
    weight: Tensor,
    chains: int,
    z: Tensor,
    gamma: Tensor,
    beta: Tensor,
    statistics: Tensor,
    dz: Tensor,
    dgamma: Tensor,
    dbeta: Tensor,
    dactivation: Tensor | None = None,
    early: bool = False,
) -> None:
    """What ``blocks.norm_relu_pool_backward`` writes, given dz and the weight of the block above."""
    images, channels, side = z.shape[:3]
    tile = _down_tile(images * chains, channels // chains, side // 2)
    _small_block_backward[(images, channels // tile.block)](
        dz_above, weight, z, gamma, beta, *statistics, dz if dactivation is None else dactivation, dz, dgamma, dbeta,
        dz_above.shape[1], channels, chains, side // 2, tile.block,
        math.gcd(dz_above.shape[1] // chains, tile.depth), dactivation is not None, early,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(early),
    )  # fmt: skip


def small_input_gradient(dz: Tensor, weight: Tensor, chains: int, dbelow: Tensor, early: bool = False) -> None:
    """Write the gradient of what a convolution sees, channels-last."""
    images, channels, side = dz.shape[:3]
    inputs, pixels = dbelow.shape[1] // chains, min(side * side, PIXELS)
    tile = _down_tile(images * chains, inputs, side)
    _small_input_gradient[(images * side * side // pixels, dbelow.shape[1] // tile.block)](
        dz, weight, dbelow, inputs, channels, chains, side, pixels, tile.block,
        math.gcd(channels // chains, tile.depth), early,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(early),
    )  # fmt: skip


def small_first_backward(
    dz: Tensor,
    weight_above: Tensor,
    chains: int,
    patches: Patches,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    statistics: Tensor,
    dweight: Tensor,
    dgamma: Tensor,
    dbeta: Tensor,
    early: bool = False,
) -> None:
    """Add what ``first_block_backward`` adds, given dz and the weight of the block above."""
    images, channels_above, side = dz.shape[:3]
    channels, pixels = len(gamma), min(side * side, PIXELS)
    tile = _down_tile(images * chains, channels // chains, side)
    _small_first_backward[(images * side * side // pixels, channels // tile.block)](
        dz, weight_above, patches.values, patches.gram, weight, gamma, beta, *statistics, dweight, dgamma, dbeta,
        patches.inputs, patches.gram.shape[-1], channels, channels_above, chains, side, pixels, tile.block,
        math.gcd(channels_above // chains, tile.depth), early,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(early),
    )  # fmt: skip


def small_weight_gradient(dz: Tensor, below: Tensor, chains: int, dweight: Tensor, early: bool = False) -> None:
    """Add the gradient of a convolution's weight, (out, 3, 3, in) flattened, to ``dweight``."""
    images, channels, side = dz.shape[:3]
    inputs = below.shape[1] // chains
    tile = _weight_tile(images, channels, inputs, chains, side)
    _small_weight_gradient[(channels // tile.rows, inputs // tile.columns, 9 * tile.splits)](
        dz, below, dweight, images, tile.splits, inputs, channels, chains, side, tile.rows, tile.columns, tile.pixels,
        early, num_warps=tile.warps, num_stages=tile.stages, **launch_options(early),
    )  # fmt: skip


def sums_are_whole(layout: Layout, images: int) -> bool:
    """Whether one program adds up each tile of all weights' gradients, as ``small_weight_step`` wants it."""
    each = (
        _weight_tile(images, block.channels, block.inputs, layout.chains, block.side) for block in layout.blocks[1:]
    )
    return all(tile.splits == 1 and tile.columns % 4 == 0 for tile in each)


def small_weight_step(dz: Tensor, below: Tensor, chains: int, weight: slice, step: Step, early: bool = False) -> None:
    """Let a convolution's weight take its step, for which nobody needs the gradient."""
    images, channels, side = dz.shape[:3]
    inputs = below.shape[1] // chains
    tile = _weight_tile(images, channels, inputs, chains, side)
    theta, velocity, compact, rates, seeds, stream, following = step
    _small_weight_step[(channels // tile.rows, inputs // tile.columns, 9)](
        dz, below, theta, velocity, compact, rates, seeds, stream, rates if following is None else following,
        weight.start, theta.numel(), images, inputs, channels, chains, side, tile.rows, tile.columns, tile.pixels,
        following is None, early, num_warps=tile.warps, num_stages=tile.stages, **launch_options(early),
    )  # fmt: skip


def _up_tile(images: int, channels: int, pooled_side: int) -> Tile:
    """For a convolution with its norm, of so many images of one chain's channels."""
    if pooled_side > POOLED_SIDES[0]:
        return Tile(16, 64, WARPS, STAGES)
    return Tile(math.gcd(channels, 32), 128, WARPS, STAGES)


def _down_tile(images: int, channels: int, side: int) -> Tile:
    """For a gradient in the input of a convolution, of so many images of one chain's channels."""
    return Tile(16, 128, WARPS, STAGES)


def _weight_tile(images: int, channels: int, inputs: int, chains: int, side: int) -> WeightTile:
    """For a gradient of a weight, of which several programs add up a tile where there are few tiles."""
    most = WEIGHT_TILE
    rows, columns = math.gcd(channels // chains, most.rows), math.gcd(inputs, most.columns)
    pixels, programs = min(side * side, most.pixels), 9 * (channels // rows) * (inputs // columns)
    splits = max(1, min(images * side * side // pixels, most.splits // programs))
    return WeightTile(rows, columns, pixels, splits, most.warps, most.stages)
