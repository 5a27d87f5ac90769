"""The classifier, its cross-entropy and the update of the parameters, as Triton kernels.

For image i with features h_i, labels y_i (a distribution) and factor s_i = w_i / n:

    l = W h_i + b,   p = softmax(l),   e_i = - s_i sum_c y_ic log p_c
    dl = s_i (p sum_c y_ic - y_i),   dh_i = W^T dl,   dW = sum_i dl h_i^T,   db = sum_i dl,   dy_i = - s_i log p

A program of the kernels holds all scores of an image and reads all of W, twice where it is large. With many classes the
same is computed by products of matrices, which read W once for a tile of images.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_VALUES = 32_768
MOST_CLASSES = 64
"""Of the kernels: with 200 classes they took more than half of a step of 2,000 images, as 2,000 of ten classes show."""


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
):
    row = tl.program_id(0)
    image, chain = row // chains, row % chains
    weight += chain * (classes * size)
    bias += chain * classes
    features += row * size
    dfeatures += row * size
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
    tl.store(energies + row, -factor * tl.sum(y * log_p, 0))
    p = tl.where(real, tl.exp(log_p), 0.0)
    dl = factor * (p * tl.sum(y, 0) - y)
    tl.store(dlogits + row * padded + c, dl)
    if soft:
        tl.store(dlabels + row * padded + c, -factor * log_p)
    for start in tl.static_range(0, size, chunk):
        f = start + tl.arange(0, chunk)
        mask = f < size
        if size > chunk:  # what was loaded last is not what is needed first
            w = tl.load(weight + c[:, None] * size + f[None, :], mask=real[:, None] & mask[None, :], other=0.0)
        dh = tl.sum(w.to(tl.float32) * dl[:, None], 0)
        tl.store(dfeatures + f, dh.to(dfeatures.dtype.element_ty), mask=mask)


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
):
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
def _update(
    theta,
    velocity,
    gradient,
    compact,
    speeds,
    rates,
    seeds,
    stream,
    size,
    block: tl.constexpr,
):
    """v <- mu v + grad + decay theta + noise P^(-1/2) N(0, 1);  theta <- theta - eta P v;  the gradient is cleared.

    Four parts of a program's parameters share the four normal numbers of one draw.
    """
    place = tl.program_id(0) * block + tl.arange(0, block)
    noise = tl.load(rates + 2)
    momentum = tl.load(rates + 3)
    z0 = tl.zeros((block,), dtype=tl.float32)
    z1, z2, z3 = z0, z0, z0
    if noise != 0:
        z0, z1, z2, z3 = tl.randn4x(tl.load(seeds) + stream, place)
    first = tl.program_id(0) * (4 * block) + tl.arange(0, block)
    for part in tl.static_range(4):
        index = first + part * block
        z = z0 if part == 0 else z1 if part == 1 else z2 if part == 2 else z3
        mask = index < size
        position = tl.load(theta + index, mask=mask, other=0.0)
        slope = tl.load(gradient + index, mask=mask, other=0.0) + tl.load(rates + 1) * position
        speed = tl.load(speeds + index, mask=mask, other=1.0)
        slope += noise * z * tl.rsqrt(speed)
        if momentum != 0:
            slope += momentum * tl.load(velocity + index, mask=mask, other=0.0)
        position -= tl.load(rates) * speed * slope
        tl.store(theta + index, position, mask=mask)
        tl.store(velocity + index, slope, mask=mask)
        tl.store(compact + index, position.to(compact.dtype.element_ty), mask=mask)
        tl.store(gradient + index, tl.zeros((block,), dtype=tl.float32), mask=mask)


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
) -> None:
    """Write energies e_i, dl, dh and, for soft labels, dy; ``dlogits`` and ``dlabels`` are (m, padded classes).

    With several chains, as many as ``signs``, there are (m * chains) rows, the chains of one image next to one another,
    and the weight and bias are those of all chains one after another. All that a chain gives is times its sign.
    """
    labels = labels.contiguous()
    size = weight.shape[1]
    chains = len(signs)
    classes = len(bias) // chains
    if classes > MOST_CLASSES:
        _classify_by_products(features, weight, bias, labels, factors, energies, dlogits, dfeatures, dlabels, signs)
        return
    padded = dlogits.shape[1]
    _classify[(len(features),)](
        features, weight, bias, labels, factors, energies, dlogits, dfeatures, dlabels, signs,
        size, classes, padded, min(triton.next_power_of_2(size), TILE_VALUES // padded),
        labels.is_floating_point(), chains, num_warps=8,
    )  # fmt: skip


def _classify_by_products(
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
) -> None:
    """What ``classify`` says, in tensors (chains, m, ...)."""
    chains, size = len(signs), weight.shape[1]
    classes = len(bias) // chains

    def by_rows(buffer: Tensor) -> Tensor:
        return buffer.view(-1, chains, buffer.shape[1]).transpose(0, 1)

    w = weight.view(chains, classes, size).float()
    logits = torch.baddbmm(bias.view(chains, 1, classes), by_rows(features).float(), w.mT)
    log_p = logits.log_softmax(2)
    hard = not labels.is_floating_point()
    y = (labels[:, None] == torch.arange(classes, device=labels.device)).float() if hard else labels
    scale = (signs[:, None] * factors)[..., None]
    dl = scale * (log_p.exp() * y.sum(1, keepdim=True) - y)
    by_rows(energies[:, None]).copy_(-scale * (y * log_p).sum(2, keepdim=True))
    by_rows(dlogits)[..., :classes].copy_(dl)
    by_rows(dfeatures).copy_(dl @ w)
    if not hard:
        by_rows(dlabels)[..., :classes].copy_(-scale * log_p)


def classifier_gradient(features: Tensor, dlogits: Tensor, dweight: Tensor, dbias: Tensor, chains: int = 1) -> None:
    """Write dW and db, of each chain."""
    rows, size = features.shape
    classes = len(dbias) // chains
    if classes > MOST_CLASSES:
        dl = dlogits.view(-1, chains, dlogits.shape[1])[..., :classes].transpose(0, 1)
        h = features.view(-1, chains, size).transpose(0, 1).float()
        torch.bmm(dl.mT, h, out=dweight.view(chains, classes, size))
        torch.sum(dl, 1, out=dbias.view(chains, classes))
        return
    columns = 64
    _classifier_gradient[(triton.cdiv(size, columns), chains)](
        features, dlogits, dweight, dbias, rows // chains, size, classes, dlogits.shape[1], columns, 32,
        chains, num_warps=4,
    )  # fmt: skip


def update(
    theta: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    compact: Tensor,
    speeds: Tensor,
    rates: Tensor,
    seeds: Tensor,
    stream: int,
) -> None:
    """One step of the parameters; ``rates`` holds (eta, decay, noise, mu) and ``seeds`` one integer, on the device.

    ``speeds`` is P, one number for each parameter.
    ``stream`` tells the steps that share a seed apart; ``compact`` gets the new parameters in the network's precision.
    """
    block = 256
    size = theta.numel()
    _update[(triton.cdiv(size, 4 * block),)](
        theta, velocity, gradient, compact, speeds, rates, seeds, stream, size, block, num_warps=4
    )


def padded_classes(classes: int) -> int:
    return int(max(16, triton.next_power_of_2(classes)))
