"""Triton kernels for norm, ReLU and pooling of one ConvNet block, in one pass each way.

Activations lie in channels-last order. With instance norm, a pooled output pixel q of channel c is

    p_q = 1/4 sum_{j in window(q)} relu(gamma_c xhat_j + beta_c),   xhat_j = r_c (z_j - mean_c)

where r = 1 / sqrt(var + eps), and z is the convolution's output without its bias, which the norm removes again.
Backward, with g the gradient of p and a that of the unpooled activations (0 where nobody looks at them):

    d_j      = (g_q / 4 + a_j) * [gamma xhat_j + beta > 0]
    dgamma   = sum_j d_j xhat_j,   dbeta = sum_j d_j
    dz_j     = r gamma (d_j - mean(d) - xhat_j mean(d xhat))

Means and rates r are kept for the way back. A program holds all pixels of one image and a few channels in registers, so
every activation is read once and written once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.backends.fused.chip import spread_over_chip

EPSILON = 1e-5


@triton.jit
def window_pixel(q, sub, pooled_side: tl.constexpr):
    """Position of sub-pixel ``sub`` (0..3) of pooled pixel ``q`` in the unpooled image."""
    row = (q // pooled_side) * 2 + sub // 2
    column = (q % pooled_side) * 2 + sub % 2
    return row * (2 * pooled_side) + column


@triton.jit
def slope_of_norm(gamma, beta, mean, rate):
    """(a, b) such that gamma xhat + beta = a z + b."""
    a = gamma * rate
    return a, beta - a * mean


@triton.jit
def slope_of_gradient(a, mean, rate, sum_d, sum_dz, pixels: tl.constexpr):
    """dbeta, dgamma, and (u, v) such that dz = a d + u z + v, given sum_j d_j and sum_j d_j z_j."""
    sum_dx = rate * (sum_dz - mean * sum_d)
    u = -a * rate * sum_dx / pixels
    return sum_d, sum_dx, u, -a * sum_d / pixels - u * mean


@triton.jit
def _window_offsets(c, channels: tl.constexpr, pooled_side: tl.constexpr):
    """Where the four sub-pixels of pooled pixels lie in an image's activations, for channels ``c``."""
    q = tl.arange(0, pooled_side * pooled_side)
    offset0 = (window_pixel(q, 0, pooled_side) * channels)[:, None] + c[None, :]
    offset2 = offset0 + 2 * pooled_side * channels
    return offset0, offset0 + channels, offset2, offset2 + channels


@triton.jit
def load_windows(source, image, c, channels: tl.constexpr, pooled_side: tl.constexpr):
    """The four sub-pixels (quarter, block) of an image's pooled pixels, in float32."""
    offset0, offset1, offset2, offset3 = _window_offsets(c, channels, pooled_side)
    source += image * (4 * pooled_side * pooled_side * channels)
    v0 = tl.load(source + offset0).to(tl.float32)
    v1 = tl.load(source + offset1).to(tl.float32)
    v2 = tl.load(source + offset2).to(tl.float32)
    v3 = tl.load(source + offset3).to(tl.float32)
    return v0, v1, v2, v3


@triton.jit
def store_windows(target, v0, v1, v2, v3, image, c, channels: tl.constexpr, pooled_side: tl.constexpr):
    """Write them in the target's precision."""
    offset0, offset1, offset2, offset3 = _window_offsets(c, channels, pooled_side)
    target += image * (4 * pooled_side * pooled_side * channels)
    tl.store(target + offset0, v0.to(target.dtype.element_ty))
    tl.store(target + offset1, v1.to(target.dtype.element_ty))
    tl.store(target + offset2, v2.to(target.dtype.element_ty))
    tl.store(target + offset3, v3.to(target.dtype.element_ty))


@triton.jit
def pool_norms(
    z0,
    z1,
    z2,
    z3,
    image,
    c,
    gamma,
    beta,
    out,
    out_image,
    out_channel,
    out_pixel,
    means,
    rates,
    activation,
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    epsilon: tl.constexpr,
    keep: tl.constexpr,
):
    """p and the statistics of one image, given the sub-pixels of its pooled pixels (quarter, block)."""
    quarter: tl.constexpr = pooled_side * pooled_side
    q = tl.arange(0, quarter)
    mean = tl.sum(z0 + z1 + z2 + z3, 0) / (4 * quarter)
    z0 -= mean[None, :]
    z1 -= mean[None, :]
    z2 -= mean[None, :]
    z3 -= mean[None, :]
    variance = tl.sum(z0 * z0 + z1 * z1 + z2 * z2 + z3 * z3, 0) / (4 * quarter)
    rate = 1.0 / tl.sqrt(variance + epsilon)
    tl.store(means + image * channels + c, mean)
    tl.store(rates + image * channels + c, rate)
    scale = (tl.load(gamma + c) * rate)[None, :]
    shift = tl.load(beta + c)[None, :]
    z0 = tl.maximum(scale * z0 + shift, 0.0)
    z1 = tl.maximum(scale * z1 + shift, 0.0)
    z2 = tl.maximum(scale * z2 + shift, 0.0)
    z3 = tl.maximum(scale * z3 + shift, 0.0)
    if keep:
        store_windows(activation, z0, z1, z2, z3, image, c, channels, pooled_side)
    target = out + image * out_image + c[None, :] * out_channel + (q * out_pixel)[:, None]
    tl.store(target, ((z0 + z1 + z2 + z3) * 0.25).to(out.dtype.element_ty))


@triton.jit
def _norm_relu_pool(
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
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    block: tl.constexpr,
    epsilon: tl.constexpr,
    keep: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * block + tl.arange(0, block)
    z0, z1, z2, z3 = load_windows(z, image, c, channels, pooled_side)
    pool_norms(
        z0, z1, z2, z3, image, c, gamma, beta, out, out_image, out_channel, out_pixel, means, rates, activation,
        channels, pooled_side, epsilon, keep,
    )  # fmt: skip


@triton.jit
def spread_gradient(
    g,
    image,
    c,
    z,
    gamma,
    beta,
    means,
    rates,
    dactivation,
    dz,
    dgamma,
    dbeta,
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    seen: tl.constexpr,
):
    """dz of one image, and its part of dgamma and dbeta, given a quarter of the gradient of p (quarter, block)."""
    quarter: tl.constexpr = pooled_side * pooled_side
    z0, z1, z2, z3 = load_windows(z, image, c, channels, pooled_side)
    mean = tl.load(means + image * channels + c)
    rate = tl.load(rates + image * channels + c)
    a, b = slope_of_norm(tl.load(gamma + c), tl.load(beta + c), mean, rate)
    g0 = g
    g1 = g
    g2 = g
    g3 = g
    if seen:
        a0, a1, a2, a3 = load_windows(dactivation, image, c, channels, pooled_side)
        g0 += a0
        g1 += a1
        g2 += a2
        g3 += a3
    d0 = tl.where(a[None, :] * z0 + b[None, :] > 0, g0, 0.0)
    d1 = tl.where(a[None, :] * z1 + b[None, :] > 0, g1, 0.0)
    d2 = tl.where(a[None, :] * z2 + b[None, :] > 0, g2, 0.0)
    d3 = tl.where(a[None, :] * z3 + b[None, :] > 0, g3, 0.0)
    sum_d = tl.sum(d0 + d1 + d2 + d3, 0)
    sum_dz = tl.sum(d0 * z0 + d1 * z1 + d2 * z2 + d3 * z3, 0)
    of_beta, of_gamma, u, v = slope_of_gradient(a, mean, rate, sum_d, sum_dz, 4 * quarter)
    tl.atomic_add(dbeta + c, of_beta, sem="relaxed")
    tl.atomic_add(dgamma + c, of_gamma, sem="relaxed")
    a = a[None, :]
    u = u[None, :]
    v = v[None, :]
    d0 = a * d0 + (u * z0 + v)
    d1 = a * d1 + (u * z1 + v)
    d2 = a * d2 + (u * z2 + v)
    d3 = a * d3 + (u * z3 + v)
    store_windows(dz, d0, d1, d2, d3, image, c, channels, pooled_side)


@triton.jit
def _norm_relu_pool_backward(
    z,
    gamma,
    beta,
    means,
    rates,
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
    seen: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * block + tl.arange(0, block)
    q = tl.arange(0, pooled_side * pooled_side)
    source = gradient + image * gradient_image + c[None, :] * gradient_channel + (q * gradient_pixel)[:, None]
    g = tl.load(source).to(tl.float32) * 0.25
    spread_gradient(
        g, image, c, z, gamma, beta, means, rates, dactivation, dz, dgamma, dbeta, channels, pooled_side, seen
    )


def norm_relu_pool(
    z: Tensor, gamma: Tensor, beta: Tensor, out: Tensor, statistics: Tensor, activation: Tensor | None = None
) -> None:
    """Write p into ``out`` (m, channels, side/2, side/2), of any strides whose pixels are evenly spaced.

    ``statistics`` (2, m, channels) gets means and rates; ``activation``, channels-last like ``z``, what is pooled.
    """
    images, channels, pooled_side = out.shape[:3]
    block = _channel_block(spread_over_chip(images * channels, z.device), channels, pooled_side)
    _norm_relu_pool[(images, channels // block)](
        z, gamma, beta, out, out.stride(0), out.stride(1), out.stride(3), *statistics,
        z if activation is None else activation,
        channels, pooled_side, block, EPSILON, activation is not None, num_warps=_warps(pooled_side, block),
    )  # fmt: skip


def norm_relu_pool_backward(
    z: Tensor,
    gamma: Tensor,
    beta: Tensor,
    statistics: Tensor,
    gradient: Tensor,
    dz: Tensor,
    dgamma: Tensor,
    dbeta: Tensor,
    dactivation: Tensor | None = None,
) -> None:
    """Write dz, and add to dgamma and dbeta; ``dactivation`` is the gradient of what is pooled, channels-last."""
    images, channels, pooled_side = gradient.shape[:3]
    block = _channel_block(spread_over_chip(images * channels, z.device), channels, pooled_side)
    _norm_relu_pool_backward[(images, channels // block)](
        z, gamma, beta, *statistics, gradient, gradient.stride(0), gradient.stride(1), gradient.stride(3),
        dz if dactivation is None else dactivation, dz, dgamma, dbeta,
        channels, pooled_side, block, dactivation is not None, num_warps=_warps(pooled_side, block),
    )  # fmt: skip


def _channel_block(values: int, channels: int, pooled_side: int) -> int:
    """Channels a program holds: enough programs to fill the chip, few enough values to stay in registers."""
    most = 8 if values < 8192 else 16 if values < 32768 else 32 if values < 131072 else 64
    return min(most, max(8, 4096 // (pooled_side * pooled_side)), channels & -channels)


def _warps(pooled_side: int, block: int) -> int:
    values = 4 * pooled_side * pooled_side * block
    return 8 if values >= 32768 else 4 if values >= 4096 else 2 if values >= 1024 else 1
