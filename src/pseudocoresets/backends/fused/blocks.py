"""Triton kernels for one ConvNet block: first convolution, and norm + ReLU + pooling in one pass each way.

Images and activations lie in channels-last order. With instance norm, a pooled output pixel q of channel c is

    p_q = 1/4 sum_{j in window(q)} relu(gamma_c xhat_j + beta_c),   xhat_j = (z_j - mean_c) / sqrt(var_c + eps)

where z is the convolution's output without its bias, which the norm removes again. Backward, with g the gradient of p,
a that of the unpooled activations (0 where nobody looks at them) and r = 1 / sqrt(var + eps):

    d_j      = (g_q / 4 + a_j) * [gamma xhat_j + beta > 0]
    dgamma   = sum_j d_j xhat_j,   dbeta = sum_j d_j
    dz_j     = r gamma (d_j - mean(d) - xhat_j mean(d xhat))

A program holds all pixels of one image and a few channels in registers, so every activation is read once and written
once.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

EPSILON = 1e-5
PIXELS_PER_PROGRAM = 128
FOLDED_PIXELS = 256


@triton.jit
def _window_offsets(q, sub, pooled_side: tl.constexpr):
    """Position of sub-pixel ``sub`` (0..3) of pooled pixel ``q`` in the unpooled image."""
    row = (q // pooled_side) * 2 + sub // 2
    column = (q % pooled_side) * 2 + sub % 2
    return row * (2 * pooled_side) + column


@triton.jit
def _norm_relu_pool(
    z,
    gamma,
    beta,
    out,
    out_image,
    out_channel,
    out_pixel,
    activation,
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    block: tl.constexpr,
    epsilon: tl.constexpr,
    keep: tl.constexpr,
):
    image = tl.program_id(0)
    c = tl.program_id(1) * block + tl.arange(0, block)
    quarter: tl.constexpr = pooled_side * pooled_side
    q = tl.arange(0, quarter)
    base = z + image * (4 * quarter * channels) + c[None, :]
    z0 = tl.load(base + (_window_offsets(q, 0, pooled_side) * channels)[:, None]).to(tl.float32)
    z1 = tl.load(base + (_window_offsets(q, 1, pooled_side) * channels)[:, None]).to(tl.float32)
    z2 = tl.load(base + (_window_offsets(q, 2, pooled_side) * channels)[:, None]).to(tl.float32)
    z3 = tl.load(base + (_window_offsets(q, 3, pooled_side) * channels)[:, None]).to(tl.float32)
    mean = tl.sum(z0 + z1 + z2 + z3, 0) / (4 * quarter)
    z0 -= mean[None, :]
    z1 -= mean[None, :]
    z2 -= mean[None, :]
    z3 -= mean[None, :]
    variance = tl.sum(z0 * z0 + z1 * z1 + z2 * z2 + z3 * z3, 0) / (4 * quarter)
    scale = (tl.load(gamma + c) / tl.sqrt(variance + epsilon))[None, :]
    shift = tl.load(beta + c)[None, :]
    z0 = tl.maximum(scale * z0 + shift, 0.0)
    z1 = tl.maximum(scale * z1 + shift, 0.0)
    z2 = tl.maximum(scale * z2 + shift, 0.0)
    z3 = tl.maximum(scale * z3 + shift, 0.0)
    if keep:
        kept = activation + image * (4 * quarter * channels) + c[None, :]
        tl.store(kept + (_window_offsets(q, 0, pooled_side) * channels)[:, None], z0.to(activation.dtype.element_ty))
        tl.store(kept + (_window_offsets(q, 1, pooled_side) * channels)[:, None], z1.to(activation.dtype.element_ty))
        tl.store(kept + (_window_offsets(q, 2, pooled_side) * channels)[:, None], z2.to(activation.dtype.element_ty))
        tl.store(kept + (_window_offsets(q, 3, pooled_side) * channels)[:, None], z3.to(activation.dtype.element_ty))
    pooled = z0 + z1 + z2 + z3
    target = out + image * out_image + c[None, :] * out_channel + (q * out_pixel)[:, None]
    tl.store(target, (pooled * 0.25).to(out.dtype.element_ty))


@triton.jit
def _norm_relu_pool_backward(
    z,
    gamma,
    beta,
    gradient,
    gradient_image,
    gradient_channel,
    gradient_pixel,
    dactivation,
    dz,
    dgamma,
    dbeta,
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    block: tl.constexpr,
    epsilon: tl.constexpr,
    seen: tl.constexpr,
):
    image = tl.program_id(0)
    c = tl.program_id(1) * block + tl.arange(0, block)
    quarter: tl.constexpr = pooled_side * pooled_side
    q = tl.arange(0, quarter)
    offset0 = (_window_offsets(q, 0, pooled_side) * channels)[:, None] + c[None, :] + image * (4 * quarter * channels)
    offset1 = offset0 + channels
    offset2 = offset0 + 2 * pooled_side * channels
    offset3 = offset2 + channels
    z0 = tl.load(z + offset0).to(tl.float32)
    z1 = tl.load(z + offset1).to(tl.float32)
    z2 = tl.load(z + offset2).to(tl.float32)
    z3 = tl.load(z + offset3).to(tl.float32)
    mean = tl.sum(z0 + z1 + z2 + z3, 0) / (4 * quarter)
    z0 -= mean[None, :]
    z1 -= mean[None, :]
    z2 -= mean[None, :]
    z3 -= mean[None, :]
    variance = tl.sum(z0 * z0 + z1 * z1 + z2 * z2 + z3 * z3, 0) / (4 * quarter)
    rate = 1.0 / tl.sqrt(variance + epsilon)
    z0 *= rate[None, :]
    z1 *= rate[None, :]
    z2 *= rate[None, :]
    z3 *= rate[None, :]
    scale = tl.load(gamma + c)
    shift = tl.load(beta + c)[None, :]
    source = gradient + image * gradient_image + c[None, :] * gradient_channel + (q * gradient_pixel)[:, None]
    g = tl.load(source).to(tl.float32) * 0.25
    g0 = g
    g1 = g
    g2 = g
    g3 = g
    if seen:
        g0 += tl.load(dactivation + offset0).to(tl.float32)
        g1 += tl.load(dactivation + offset1).to(tl.float32)
        g2 += tl.load(dactivation + offset2).to(tl.float32)
        g3 += tl.load(dactivation + offset3).to(tl.float32)
    d0 = tl.where(scale[None, :] * z0 + shift > 0, g0, 0.0)
    d1 = tl.where(scale[None, :] * z1 + shift > 0, g1, 0.0)
    d2 = tl.where(scale[None, :] * z2 + shift > 0, g2, 0.0)
    d3 = tl.where(scale[None, :] * z3 + shift > 0, g3, 0.0)
    sum_d = tl.sum(d0 + d1 + d2 + d3, 0)
    sum_dz = tl.sum(d0 * z0 + d1 * z1 + d2 * z2 + d3 * z3, 0)
    tl.atomic_add(dbeta + c, sum_d, sem="relaxed")
    tl.atomic_add(dgamma + c, sum_dz, sem="relaxed")
    factor = (rate * scale)[None, :]
    mean_d = (sum_d / (4 * quarter))[None, :]
    mean_dz = (sum_dz / (4 * quarter))[None, :]
    tl.store(dz + offset0, (factor * (d0 - mean_d - z0 * mean_dz)).to(dz.dtype.element_ty))
    tl.store(dz + offset1, (factor * (d1 - mean_d - z1 * mean_dz)).to(dz.dtype.element_ty))
    tl.store(dz + offset2, (factor * (d2 - mean_d - z2 * mean_dz)).to(dz.dtype.element_ty))
    tl.store(dz + offset3, (factor * (d3 - mean_d - z3 * mean_dz)).to(dz.dtype.element_ty))


@triton.jit
def _patches(
    x,
    pixel,
    pixels,
    side: tl.constexpr,
    padding: tl.constexpr,
    inputs: tl.constexpr,
    taps: tl.constexpr,
):
    """The 3x3 patches (pixels, taps) of a channels-last image batch; taps beyond 9 * inputs are zero."""
    out_side: tl.constexpr = side + 2 * padding - 2
    k = tl.arange(0, taps)
    image = pixel // (out_side * out_side)
    row = (pixel // out_side) % out_side
    column = pixel % out_side
    in_row = row[:, None] + (k // (3 * inputs))[None, :] - padding
    in_column = column[:, None] + ((k // inputs) % 3)[None, :] - padding
    inside = (in_row >= 0) & (in_row < side) & (in_column >= 0) & (in_column < side)
    inside = inside & (k[None, :] < 9 * inputs) & (pixel[:, None] < pixels)
    offset = (image[:, None] * (side * side) + in_row * side + in_column) * inputs + (k % inputs)[None, :]
    return tl.load(x + offset, mask=inside, other=0.0)


@triton.jit
def _first_convolution(
    x,
    weight,
    z,
    pixels,
    side: tl.constexpr,
    padding: tl.constexpr,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
):
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    c = tl.program_id(1) * block + tl.arange(0, block)
    k = tl.arange(0, taps)
    patch = _patches(x, pixel, pixels, side, padding, inputs, taps)
    w = tl.load(weight + c[None, :] * (9 * inputs) + k[:, None], mask=k[:, None] < 9 * inputs, other=0.0)
    result = tl.dot(patch, w)
    tl.store(
        z + pixel[:, None].to(tl.int64) * channels + c[None, :],
        result.to(z.dtype.element_ty),
        mask=pixel[:, None] < pixels,
    )


@triton.jit
def _first_convolution_weight_gradient(
    x,
    dz,
    dweight,
    pixels,
    side: tl.constexpr,
    padding: tl.constexpr,
    inputs: tl.constexpr,
    taps: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    repeats: tl.constexpr,
    block: tl.constexpr,
):
    c = tl.program_id(1) * block + tl.arange(0, block)
    k = tl.arange(0, taps)
    total = tl.zeros((block, taps), dtype=tl.float32)
    first = tl.program_id(0) * rows * repeats
    for repeat in range(repeats):
        pixel = first + repeat * rows + tl.arange(0, rows)
        patch = _patches(x, pixel, pixels, side, padding, inputs, taps)
        d = tl.load(dz + pixel[None, :].to(tl.int64) * channels + c[:, None], mask=pixel[None, :] < pixels, other=0.0)
        total += tl.dot(d, patch)
    mask = (k[None, :] < 9 * inputs) & (c[:, None] < channels)
    tl.atomic_add(dweight + c[:, None] * (9 * inputs) + k[None, :], total, mask=mask, sem="relaxed")


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
    rows: tl.constexpr,
):
    """dx at each pixel of the images: the sum of what the nine patches that see it give."""
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    real = pixel < pixels
    image = pixel // (side * side)
    row = (pixel // side) % side
    column = pixel % side
    out_side: tl.constexpr = side + 2 * padding - 2
    for channel in tl.static_range(inputs):
        total = tl.zeros((rows,), dtype=tl.float32)
        for tap in tl.static_range(9):
            seen_row = row - tap // 3 + padding
            seen_column = column - tap % 3 + padding
            inside = real & (seen_row >= 0) & (seen_row < out_side) & (seen_column >= 0) & (seen_column < out_side)
            place = (image * (out_side * out_side) + seen_row * out_side + seen_column) * taps
            total += tl.load(patches + place + (tap * inputs + channel), mask=inside, other=0.0).to(tl.float32)
        target = out + image * out_image + channel * out_channel + row * out_row + column * out_column
        tl.store(target, total.to(out.dtype.element_ty), mask=real)


def norm_relu_pool(z: Tensor, gamma: Tensor, beta: Tensor, out: Tensor, activation: Tensor | None = None) -> None:
    """Write p into ``out`` (m, channels, side/2, side/2), of any strides whose pixels are evenly spaced.

    ``activation``, channels-last like ``z``, gets what is pooled.
    """
    images, channels, pooled_side = out.shape[:3]
    block = _channel_block(images, channels, pooled_side)
    _norm_relu_pool[(images, channels // block)](
        z, gamma, beta, out, out.stride(0), out.stride(1), out.stride(3), z if activation is None else activation,
        channels, pooled_side, block, EPSILON, activation is not None, num_warps=_warps(pooled_side, block),
    )  # fmt: skip


def norm_relu_pool_backward(
    z: Tensor,
    gamma: Tensor,
    beta: Tensor,
    gradient: Tensor,
    dz: Tensor,
    dgamma: Tensor,
    dbeta: Tensor,
    dactivation: Tensor | None = None,
) -> None:
    """Write dz, and add to dgamma and dbeta; ``dactivation`` is the gradient of what is pooled, channels-last."""
    images, channels, pooled_side = gradient.shape[:3]
    block = _channel_block(images, channels, pooled_side)
    _norm_relu_pool_backward[(images, channels // block)](
        z, gamma, beta, gradient, gradient.stride(0), gradient.stride(1), gradient.stride(3),
        dz if dactivation is None else dactivation, dz, dgamma, dbeta,
        channels, pooled_side, block, EPSILON, dactivation is not None, num_warps=_warps(pooled_side, block),
    )  # fmt: skip


def first_convolution(x: Tensor, weight: Tensor, z: Tensor, padding: int) -> None:
    """Write the 3x3 convolution of a channels-last batch with few channels into ``z``, without a bias."""
    shape = _convolution_shape(x, z, padding)
    block = _convolution_block(z.shape[1])
    grid = (triton.cdiv(shape["pixels"], PIXELS_PER_PROGRAM), z.shape[1] // block)
    _first_convolution[grid](x, weight, z, rows=PIXELS_PER_PROGRAM, block=block, num_warps=4, **shape)


def first_convolution_weight_gradient(x: Tensor, dz: Tensor, dweight: Tensor, padding: int) -> None:
    """Add the gradient of the first convolution's weights (channels, 3, 3, inputs) to ``dweight``."""
    shape = _convolution_shape(x, dz, padding)
    block = _convolution_block(dz.shape[1])
    repeats = 4 if shape["pixels"] <= 64 * 1024 else 8
    rows = PIXELS_PER_PROGRAM
    grid = (triton.cdiv(shape["pixels"], rows * repeats), dz.shape[1] // block)
    _first_convolution_weight_gradient[grid](
        x, dz, dweight, rows=rows, repeats=repeats, block=block, num_warps=4, **shape
    )


def first_convolution_input_gradient(weight: Tensor, dz: Tensor, dx: Tensor, padding: int) -> None:
    """Write the gradient of the first convolution's input (m, inputs, side, side), of any strides.

    ``weight`` (channels, 9 * inputs) is as the kernels read it. cuDNN is four times slower at so few inputs.
    """
    images, inputs, side = dx.shape[:3]
    taps = _taps(inputs)
    padded = weight.new_zeros(len(weight), taps)
    padded[:, : 9 * inputs] = weight
    patches = dz.permute(0, 2, 3, 1).reshape(-1, len(weight)) @ padded
    pixels = images * side * side
    _fold_patches[(triton.cdiv(pixels, FOLDED_PIXELS),)](
        patches, dx, *dx.stride(), pixels, side, padding, inputs, taps, FOLDED_PIXELS, num_warps=4
    )


def _convolution_shape(x: Tensor, z: Tensor, padding: int) -> dict[str, Any]:
    images, inputs, side = x.shape[:3]
    return {
        "pixels": images * z.shape[2] * z.shape[3],
        "side": side,
        "padding": padding,
        "inputs": inputs,
        "taps": _taps(inputs),
        "channels": z.shape[1],
    }


def _taps(inputs: int) -> int:
    """The nine pixels of a patch, times its channels, padded to what a matrix product wants."""
    return max(16, triton.next_power_of_2(9 * inputs))


def _convolution_block(channels: int) -> int:
    """The largest power of two that divides the channels, at most 128."""
    return min(128, channels & -channels)


def _channel_block(images: int, channels: int, pooled_side: int) -> int:
    """Channels a program holds: enough programs to fill the chip, few enough values to stay in registers."""
    values = images * channels
    most = 8 if values < 8192 or pooled_side >= 32 else 32 if values >= 32768 and pooled_side == 16 else 16
    return min(most, channels & -channels)


def _warps(pooled_side: int, block: int) -> int:
    values = 4 * pooled_side * pooled_side * block
    return 8 if values >= 16384 else 4 if values >= 2048 else 1
