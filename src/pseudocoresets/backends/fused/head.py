"""Triton kernels for the classifier, its cross-entropy and the update of the parameters.

For image i with features h_i, labels y_i (a distribution) and factor s_i = w_i / n:

    l = W h_i + b,   p = softmax(l),   e_i = - s_i sum_c y_ic log p_c
    dl = s_i (p sum_c y_ic - y_i),   dh_i = W^T dl,   dW = sum_i dl h_i^T,   db = sum_i dl,   dy_i = - s_i log p
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.backends.fused.blocks import spread_gradient
from pseudocoresets.backends.fused.chip import spread_over_chip
from pseudocoresets.backends.fused.following import follow, launch_options

TILE_VALUES = 32_768
LEAST_CHANNELS, SHARED_CHANNELS, SHARED_PROGRAMS = 8, 64, 264
"""Channels of a program that classifies and goes on, so that about so many programs each find their image's logits."""


@triton.jit
def _classified(
    image,
    chain,
    writes,
    features,
    weight,
    bias,
    labels,
    factors,
    energies,
    dlogits,
    dlabels,
    signs,
    size: tl.constexpr,
    classes: tl.constexpr,
    padded: tl.constexpr,
    chunk: tl.constexpr,
    soft: tl.constexpr,
    chains: tl.constexpr,
):
    """dl, and the weights that were loaded last; the program that ``writes`` also writes what depends on no feature."""
    row = image * chains + chain
    features += row * size
    c = tl.arange(0, padded)
    real = c < classes
    logits = tl.load(bias + c, mask=real, other=0.0)
    for start in tl.static_range(0, size, chunk):
        f = start + tl.arange(0, chunk)
        mask = f < size
        h = tl.load(features + f, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(weight + c[:, None] * size + f[None, :], mask=real[:, None] & mask[None, :], other=0.0)
        logits += tl.sum(w.to(tl.float32) * h[None, :], 1)
    logits = tl.where(real, logits, float("-inf"))
    shifted = logits - tl.max(logits, 0)
    log_total = tl.log(tl.sum(tl.exp(shifted), 0))
    log_p = tl.where(real, shifted - log_total, 0.0)
    if soft:
        y = tl.load(labels + image * classes + c, mask=real, other=0.0)
    else:
        y = (c == tl.load(labels + image)).to(tl.float32)
    factor = tl.load(factors + image) * tl.load(signs + chain)
    p = tl.where(real, tl.exp(log_p), 0.0)
    dl = factor * (p * tl.sum(y, 0) - y)
    if writes:
        tl.store(energies + row, -factor * tl.sum(y * log_p, 0))
        tl.store(dlogits + row * padded + c, dl)
        if soft:
            tl.store(dlabels + row * padded + c, -factor * log_p)
    return dl, w


@triton.jit
def _classify(
    features,
    weight,
    bias,
    labels,
    factors,
    energies,
    dlogits,
    dfeatures,
    dlabels,
    signs,
    size: tl.constexpr,
    classes: tl.constexpr,
    padded: tl.constexpr,
    chunk: tl.constexpr,
    soft: tl.constexpr,
    chains: tl.constexpr,
    early: tl.constexpr,
):
    follow(early)
    row = tl.program_id(0)
    image, chain = row // chains, row % chains
    weight += chain * (classes * size)
    bias += chain * classes
    dfeatures += row * size
    c = tl.arange(0, padded)
    real = c < classes
    dl, w = _classified(
        image, chain, True, features, weight, bias, labels, factors, energies, dlogits, dlabels, signs,
        size, classes, padded, chunk, soft, chains,
    )  # fmt: skip
    for start in tl.static_range(0, size, chunk):
        f = start + tl.arange(0, chunk)
        mask = f < size
        if size > chunk:  # what was loaded last is not what is needed first
            w = tl.load(weight + c[:, None] * size + f[None, :], mask=real[:, None] & mask[None, :], other=0.0)
        dh = tl.sum(w.to(tl.float32) * dl[:, None], 0)
        tl.store(dfeatures + f, dh.to(dfeatures.dtype.element_ty), mask=mask)


@triton.jit
def _classify_and_return(
    features,
    weight,
    bias,
    labels,
    factors,
    energies,
    dlogits,
    dlabels,
    signs,
    z,
    gamma,
    beta,
    means,
    rates,
    dz,
    dgamma,
    dbeta,
    classes: tl.constexpr,
    padded: tl.constexpr,
    chunk: tl.constexpr,
    soft: tl.constexpr,
    chains: tl.constexpr,
    channels: tl.constexpr,
    pooled_side: tl.constexpr,
    block: tl.constexpr,
    early: tl.constexpr,
):
    """``_classify``, and from dh the gradient of the last block's norm: each program finds an image's logits anew."""
    follow(early)
    quarter: tl.constexpr = pooled_side * pooled_side
    each: tl.constexpr = channels // chains
    size: tl.constexpr = each * quarter
    image = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * block
    chain = first // each
    weight += chain * (classes * size)
    bias += chain * classes
    dl, _ = _classified(
        image, chain, first % each == 0, features, weight, bias, labels, factors, energies, dlogits, dlabels, signs,
        size, classes, padded, chunk, soft, chains,
    )  # fmt: skip
    c = tl.arange(0, padded)
    f = (first % each) * quarter + tl.arange(0, block * quarter)
    w = tl.load(weight + c[:, None] * size + f[None, :], mask=(c < classes)[:, None], other=0.0)
    dh = tl.sum(w.to(tl.float32) * dl[:, None], 0).to(features.dtype.element_ty)
    g = tl.trans(tl.reshape(dh, (block, quarter))).to(tl.float32) * 0.25
    spread_gradient(
        g, image, first + tl.arange(0, block), z, gamma, beta, means, rates, dz, dz, dgamma, dbeta,
        channels, pooled_side, False,
    )  # fmt: skip


@triton.jit
def _classifier_gradient(
    features,
    dlogits,
    dweight,
    dbias,
    images,
    size: tl.constexpr,
    classes: tl.constexpr,
    padded: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
    chains: tl.constexpr,
    early: tl.constexpr,
):
    follow(early)
    chain = tl.program_id(1)
    dweight += chain * (classes * size)
    dbias += chain * classes
    f = tl.program_id(0) * columns + tl.arange(0, columns)
    c = tl.arange(0, padded)
    total = tl.zeros((padded, columns), dtype=tl.float32)
    total_bias = tl.zeros((padded,), dtype=tl.float32)
    for start in range(0, images, rows):
        i = start + tl.arange(0, rows)
        place = i * chains + chain
        dl = tl.load(dlogits + place[None, :] * padded + c[:, None], mask=i[None, :] < images, other=0.0)
        h = tl.load(
            features + place[:, None] * size + f[None, :], mask=(i[:, None] < images) & (f[None, :] < size), other=0.0
        )
        total += tl.dot(dl, h.to(tl.float32), input_precision="ieee")
        total_bias += tl.sum(dl, 1)
    mask = (c[:, None] < classes) & (f[None, :] < size)
    tl.store(dweight + c[:, None] * size + f[None, :], total, mask=mask)
    if tl.program_id(0) == 0:
        tl.store(dbias + c, total_bias, mask=c < classes)


@triton.jit
def take_step(theta, velocity, compact, index, mask, gradient, z, rates, keep):
    """v <- mu v + grad + decay theta + noise z;  theta <- theta - eta v, of the parameters at ``index``."""
    momentum = tl.load(rates + 3)
    position = tl.load(theta + index, mask=mask, other=0.0)
    slope = gradient + tl.load(rates + 1) * position
    slope += tl.load(rates + 2) * z
    if momentum != 0:
        slope += momentum * tl.load(velocity + index, mask=mask, other=0.0)
    position -= tl.load(rates) * slope
    tl.store(theta + index, position, mask=mask)
    if keep:
        tl.store(velocity + index, slope, mask=mask)
    tl.store(compact + index, position.to(compact.dtype.element_ty), mask=mask)


@triton.jit
def _update(
    theta,
    velocity,
    gradient,
    compact,
    rates,
    seeds,
    stream,
    size,
    following,
    places,
    chosen: tl.constexpr,
    block: tl.constexpr,
    last: tl.constexpr,
    early: tl.constexpr,
):
    """v <- mu v + grad + decay theta + noise N(0, 1);  theta <- theta - eta v;  the gradient is then cleared.

    Four parts of a program's parameters share the four normal numbers of one draw. v is written for the ``last`` step,
    and for one whose next has momentum.
    """
    place = tl.program_id(0) * block + tl.arange(0, block)
    z0 = tl.zeros((block,), dtype=tl.float32)
    z1, z2, z3 = z0, z0, z0
    if tl.load(rates + 2) != 0:
        z0, z1, z2, z3 = tl.randn4x(tl.load(seeds) + stream, place)
    keep = last
    if not last:
        keep = tl.load(following + 3) != 0
    follow(early)
    first = tl.program_id(0) * (4 * block) + tl.arange(0, block)
    for part in tl.static_range(4):
        index = first + part * block
        z = z0 if part == 0 else z1 if part == 1 else z2 if part == 2 else z3
        mask = index < size
        if chosen:
            index = tl.load(places + index, mask=mask, other=0)
        slope = tl.load(gradient + index, mask=mask, other=0.0)
        take_step(theta, velocity, compact, index, mask, slope, z, rates, keep)
        tl.store(gradient + index, tl.zeros((block,), dtype=tl.float32), mask=mask)


class Step(NamedTuple):
    """Of parameters, what a step takes besides their gradient."""

    theta: Tensor
    velocity: Tensor
    compact: Tensor
    """Gets the new parameters in the network's precision."""
    rates: Tensor
    """(eta, decay, noise, mu), on the device."""
    seeds: Tensor
    """One integer, on the device."""
    stream: int
    """What tells the steps that share a seed apart."""
    following: Tensor | None = None
    """The rates of the next step, if there is one: without momentum among them, the velocity stays unwritten."""


def classify(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    factors: Tensor,
    energies: Tensor,
    dlogits: Tensor,
    dfeatures: Tensor,
    dlabels: Tensor,
    signs: Tensor,
    early: bool = False,
) -> None:
    """Write energies e_i, dl, dh and, for soft labels, dy; ``dlogits`` and ``dlabels`` are (m, padded classes).

    With several chains, as many as ``signs``, there are (m * chains) rows, the chains of one image next to one another,
    and the weight and bias are those of all chains one after another. All that a chain gives is times its sign.
    """
    size = weight.shape[1]
    chains = len(signs)
    classes = len(bias) // chains
    padded = dlogits.shape[1]
    _classify[(len(features),)](
        features, weight, bias, labels, factors, energies, dlogits, dfeatures, dlabels, signs,
        size, classes, padded, min(triton.next_power_of_2(size), TILE_VALUES // padded),
        labels.is_floating_point(), chains, early, num_warps=8, **launch_options(early),
    )  # fmt: skip


def classify_and_return(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    factors: Tensor,
    energies: Tensor,
    dlogits: Tensor,
    dlabels: Tensor,
    signs: Tensor,
    z: Tensor,
    gamma: Tensor,
    beta: Tensor,
    statistics: Tensor,
    dz: Tensor,
    dgamma: Tensor,
    dbeta: Tensor,
    early: bool = False,
) -> None:
    """Write what ``classify`` writes but dh, and what ``blocks.norm_relu_pool_backward`` makes of that."""
    images, channels, side = z.shape[:3]
    chains, padded, pooled_side = len(signs), dlogits.shape[1], side // 2
    block = min(SHARED_CHANNELS, spread_over_chip(images * channels, z.device) // SHARED_PROGRAMS)
    block = math.gcd(channels // chains, triton.next_power_of_2(max(LEAST_CHANNELS, block)))
    size = channels // chains * pooled_side * pooled_side
    _classify_and_return[(images, channels // block)](
        features, weight, bias, labels, factors, energies, dlogits, dlabels, signs, z, gamma, beta, *statistics, dz,
        dgamma, dbeta, len(bias) // chains, padded, min(triton.next_power_of_2(size), TILE_VALUES // padded),
        labels.is_floating_point(), chains, channels, pooled_side, block, early, num_warps=8, **launch_options(early),
    )  # fmt: skip


def classifier_gradient(
    features: Tensor, dlogits: Tensor, dweight: Tensor, dbias: Tensor, chains: int = 1, early: bool = False
) -> None:
    """Write dW and db, of each chain."""
    rows, size = features.shape
    columns = 64
    _classifier_gradient[(triton.cdiv(size, columns), chains)](
        features, dlogits, dweight, dbias, rows // chains, size, len(dbias) // chains, dlogits.shape[1], columns, 32,
        chains, early, num_warps=4, **launch_options(early),
    )  # fmt: skip


def update(step: Step, gradient: Tensor, early: bool = False, places: Tensor | None = None) -> None:
    """Let all parameters, or those at ``places``, take a step, and clear their gradient."""
    theta, velocity, compact, rates, seeds, stream, following = step
    block = 256
    size = theta.numel() if places is None else len(places)
    _update[(triton.cdiv(size, 4 * block),)](
        theta, velocity, gradient, compact, rates, seeds, stream, size, rates if following is None else following,
        rates if places is None else places, places is not None, block, following is None, early,
        num_warps=4, **launch_options(early),
    )  # fmt: skip


def padded_classes(classes: int) -> int:
    return int(max(16, triton.next_power_of_2(classes)))
