"""Triton kernels for the adjoint of a descent: where its two gradients are taken, and what they do to the costate.

Both gradients are those of one wide network of two chains (``Layout.widened``), one at theta + h lambda and one at
theta - h lambda; the second is negated where it begins, at the classifier, so that sums over chains are differences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.accelerated.convnet import Layout

BLOCK = 1024


class ProbePlaces(NamedTuple):
    """Where entry j of one parameter set lies in a layout of two, and back."""

    upper: Tensor
    """Of the chain at theta + h lambda, (size,)."""
    lower: Tensor
    source: Tensor
    """For each of the 2 * size entries, the j that it belongs to."""
    signs: Tensor
    """+1 or -1 for each of them."""


def probe_places(single: Layout, double: Layout) -> ProbePlaces:
    """The places for parameters in the order of ``single``, where ``double`` is ``single.widened(2)``."""
    both = double.inverse.view(2, single.size)[:, single.order].int()
    source, signs = torch.empty_like(both.flatten()), torch.empty(2 * single.size, device=both.device)
    for places, sign in zip(both, (1.0, -1.0), strict=True):
        source[places] = torch.arange(single.size, device=both.device, dtype=torch.int32)
        signs[places] = sign
    return ProbePlaces(both[0].contiguous(), both[1].contiguous(), source, signs)


@triton.jit
def _set_probes(theta, costate, reach, source, signs, probes, compact, slopes, size, block: tl.constexpr):
    """theta + sign h lambda for both signs, in both precisions; the gradients that follow start at zero."""
    index = tl.program_id(0) * block + tl.arange(0, block)
    mask = index < size
    j = tl.load(source + index, mask=mask, other=0)
    away = tl.load(signs + index, mask=mask, other=0.0) * tl.load(reach)
    probe = tl.load(theta + j, mask=mask, other=0.0) + away * tl.load(costate + j, mask=mask, other=0.0)
    tl.store(probes + index, probe, mask=mask)
    tl.store(compact + index, probe.to(compact.dtype.element_ty), mask=mask)
    tl.store(slopes + index, tl.zeros((block,), dtype=tl.float32), mask=mask)


@triton.jit
def _pull_back(theta, following, costate, reach, rates, slopes, upper, lower, dstep, size, block: tl.constexpr):
    """lambda <- (1 - eta decay) lambda - eta D[g];  dL/deta <- dL/deta - <theta_t - theta_{t+1}, lambda> / eta."""
    j = tl.program_id(0) * block + tl.arange(0, block)
    mask = j < size
    eta = tl.load(rates)
    before = tl.load(costate + j, mask=mask, other=0.0)
    moved = tl.load(theta + j, mask=mask, other=0.0) - tl.load(following + j, mask=mask, other=0.0)
    tl.atomic_add(dstep, -tl.sum(moved * before, 0) / eta, sem="relaxed")
    above = tl.load(slopes + tl.load(upper + j, mask=mask, other=0), mask=mask, other=0.0)
    below = tl.load(slopes + tl.load(lower + j, mask=mask, other=0), mask=mask, other=0.0)
    slope = (above + below) / (2 * tl.load(reach))
    tl.store(costate + j, (1 - eta * tl.load(rates + 1)) * before - eta * slope, mask=mask)


def set_probes(
    theta: Tensor,
    costate: Tensor,
    reach: Tensor,
    places: ProbePlaces,
    probes: Tensor,
    compact: Tensor,
    slopes: Tensor,
) -> None:
    """Write both probes and clear ``slopes``, each (2 * size,)."""
    size = len(places.source)
    _set_probes[(triton.cdiv(size, BLOCK),)](
        theta, costate, reach, places.source, places.signs, probes, compact, slopes, size, BLOCK, num_warps=4
    )


def pull_back(
    theta: Tensor,
    following: Tensor,
    costate: Tensor,
    reach: Tensor,
    rates: Tensor,
    slopes: Tensor,
    places: ProbePlaces,
    dstep: Tensor,
) -> None:
    """Move the costate one step back and add to dL/deta, given both gradients, the lower one negated."""
    size = len(costate)
    _pull_back[(triton.cdiv(size, BLOCK),)](
        theta, following, costate, reach, rates, slopes, places.upper, places.lower, dstep, size, BLOCK, num_warps=4
    )
