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

import torch
import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.backends.fused.blocks import EPSILON, pool_norms, spread_gradient, store_windows, window_pixel
from pseudocoresets.backends.fused.chip import spread_over_chip
from pseudocoresets.backends.fused.layout import Layout

MOST_VALUES, MOST_VALUES_OF_WEIGHTS = 2560, 10_240
"""Channels of all images, beyond which cuDNN's convolutions, and its gradients of weights, are the faster ones."""
POOLED_SIDES = (4, 8)
WARPS, STAGES = 4, 3
BELOW = 16, 128
"""Channels of a program of a gradient in the input, and channels of dz that it multiplies at a time, at most."""
SIDE, PIXELS = 64, 64
"""Of a tile of a weight's gradient, at most, and the pixels that it adds at a time."""
PROGRAMS = 256
"""That gradients of weights are spread over, if they have so much work."""


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
):
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
):
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
):
    parts: tl.constexpr = side * side // pixels
    image = (tl.program_id(0) // parts).to(tl.int64)
    pixel = (tl.program_id(0) % parts) * pixels + tl.arange(0, pixels)
    g = _gradient_below(dz, weight, image, pixel, inputs, channels, chains, side, block, depth)
    k = tl.program_id(1) * block + tl.arange(0, block)
    place = (image * (side * side) + pixel)[:, None] * (chains * inputs) + k[None, :]
    tl.store(dbelow + place, g.to(dbelow.dtype.element_ty))


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
):
    c = tl.program_id(0) * rows + tl.arange(0, rows)
    k = tl.program_id(1) * columns + tl.arange(0, columns)
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
    tl.atomic_add(dweight + c[:, None] * (9 * inputs) + tap * inputs + k[None, :], total, sem="relaxed")


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
) -> None:
    """Write the convolution of ``below`` into ``z``, and what ``blocks.norm_relu_pool`` makes of it."""
    images, channels, pooled_side = out.shape[:3]
    inputs = below.shape[1] // chains
    block, depth = (16, 64) if pooled_side > POOLED_SIDES[0] else (math.gcd(channels // chains, 32), 128)
    _small_block[(images, channels // block)](
        below, weight, z, gamma, beta, out, out.stride(0), out.stride(1), out.stride(3), *statistics,
        z if activation is None else activation,
        inputs, channels, chains, pooled_side, block, math.gcd(inputs, depth), EPSILON, activation is not None,
        num_warps=WARPS, num_stages=STAGES,
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
) -> None:
    """What ``blocks.norm_relu_pool_backward`` writes, given dz and the weight of the block above."""
    images, channels, side = z.shape[:3]
    block, depth = BELOW
    _small_block_backward[(images, channels // block)](
        dz_above, weight, z, gamma, beta, *statistics, dz if dactivation is None else dactivation, dz, dgamma, dbeta,
        dz_above.shape[1], channels, chains, side // 2, block, math.gcd(dz_above.shape[1] // chains, depth),
        dactivation is not None,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def small_input_gradient(dz: Tensor, weight: Tensor, chains: int, dbelow: Tensor) -> None:
    """Write the gradient of what a convolution sees, channels-last."""
    images, channels, side = dz.shape[:3]
    inputs, pixels = dbelow.shape[1] // chains, min(side * side, PIXELS)
    block, depth = BELOW
    _small_input_gradient[(images * side * side // pixels, dbelow.shape[1] // block)](
        dz, weight, dbelow, inputs, channels, chains, side, pixels, block, math.gcd(channels // chains, depth),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def small_weight_gradient(dz: Tensor, below: Tensor, chains: int, dweight: Tensor) -> None:
    """Add the gradient of a convolution's weight, (out, 3, 3, in) flattened, to ``dweight``."""
    images, channels, side = dz.shape[:3]
    inputs = below.shape[1] // chains
    rows, columns, pixels = math.gcd(channels // chains, SIDE), math.gcd(inputs, SIDE), min(side * side, PIXELS)
    tiles = (channels // rows, inputs // columns)
    splits = max(1, min(images * side * side // pixels, PROGRAMS // (9 * math.prod(tiles))))
    _small_weight_gradient[(*tiles, 9 * splits)](
        dz, below, dweight, images, splits, inputs, channels, chains, side, rows, columns, pixels,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
