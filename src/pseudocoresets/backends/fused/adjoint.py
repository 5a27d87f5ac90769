"""Triton kernels for the adjoint of descents: where their gradients are taken, and what these do to the adjoints.

Each of N chains needs two gradients, at theta + h q and at theta - h q, with an h of its own. All 2 N are those of one
wide network (``Layout.widened``), whose gradients are multiplied where they begin, at the classifier, by 1 / (2 h) and
- 1 / (2 h): sums over both are then derivatives along q, and sums over all those of all chains.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.backends.fused.layout import Layout

BLOCK = 1024


class ProbePlaces(NamedTuple):
    """Where entry j of the chains' parameters lies in the layout of their probes, and back."""

    upper: Tensor
    """At theta + h q, (chains * size,)."""
    lower: Tensor
    source: Tensor
    """For each of the 2 * chains * size entries, the j that it belongs to."""
    probe: Tensor
    """And the probe, 0 .. 2 * chains - 1, those at theta + h q first."""


def probe_places(chains: Layout, probes: Layout) -> ProbePlaces:
    """The places for a layout of N chains and that of their 2 N probes."""
    size = chains.size // chains.chains
    places = probes.inverse.view(2, chains.chains * size)[:, chains.order].int()
    source = torch.empty_like(places.flatten())
    probe = torch.empty_like(source)
    owner = (chains.order // size).int()
    for side in range(2):
        source[places[side]] = torch.arange(chains.size, device=source.device, dtype=torch.int32)
        probe[places[side]] = owner + side * chains.chains
    return ProbePlaces(places[0].contiguous(), places[1].contiguous(), source, probe)


@triton.jit
def _set_probes(theta, pull, spacings, source, probe, probes, compact, gradients, size, block: tl.constexpr):
    """theta + (+- h) q for all probes, in both precisions; the gradients that follow start at zero."""
    index = tl.program_id(0) * block + tl.arange(0, block)
    mask = index < size
    j = tl.load(source + index, mask=mask, other=0)
    away = tl.load(spacings + tl.load(probe + index, mask=mask, other=0), mask=mask, other=0.0)
    place = tl.load(theta + j, mask=mask, other=0.0) + away * tl.load(pull + j, mask=mask, other=0.0)
    tl.store(probes + index, place, mask=mask)
    tl.store(compact + index, place.to(compact.dtype.element_ty), mask=mask)
    tl.store(gradients + index, tl.zeros((block,), dtype=tl.float32), mask=mask)


@triton.jit
def _pull_back(
    theta, following, adjoint, pull, speeds, rates, gradients, upper, lower, dstep, size, block: tl.constexpr
):
    """lambda <- lambda - eta (D[g] + decay q);  q <- P lambda + mu q;  dL/deta -= <P v_{t+1}, lambda before>."""
    j = tl.program_id(0) * block + tl.arange(0, block)
    mask = j < size
    eta = tl.load(rates)
    before = tl.load(adjoint + j, mask=mask, other=0.0)
    moved = tl.load(theta + j, mask=mask, other=0.0) - tl.load(following + j, mask=mask, other=0.0)
    tl.atomic_add(dstep, -tl.sum(moved * before, 0) / eta, sem="relaxed")
    above = tl.load(gradients + tl.load(upper + j, mask=mask, other=0), mask=mask, other=0.0)
    below = tl.load(gradients + tl.load(lower + j, mask=mask, other=0), mask=mask, other=0.0)
    pulled = tl.load(pull + j, mask=mask, other=0.0)
    after = before - eta * (above + below + tl.load(rates + 1) * pulled)
    tl.store(adjoint + j, after, mask=mask)
    speed = tl.load(speeds + j, mask=mask, other=0.0)
    tl.store(pull + j, speed * after + tl.load(rates + 3) * pulled, mask=mask)


def set_probes(
    theta: Tensor,
    pull: Tensor,
    spacings: Tensor,
    places: ProbePlaces,
    probes: Tensor,
    compact: Tensor,
    gradients: Tensor,
) -> None:
    """Write all probes and clear ``gradients``, each (2 * chains * size,); ``spacings`` are h, then -h, by chain."""
    size = len(places.source)
    _set_probes[(triton.cdiv(size, BLOCK),)](
        theta, pull, spacings, places.source, places.probe, probes, compact, gradients, size, BLOCK, num_warps=4
    )


def pull_back(
    theta: Tensor,
    following: Tensor,
    adjoint: Tensor,
    pull: Tensor,
    speeds: Tensor,
    rates: Tensor,
    gradients: Tensor,
    places: ProbePlaces,
    dstep: Tensor,
) -> None:
    """Move adjoints and pulls one step back and add to dL/deta, given the probes' gradients, divided by their 2 h."""
    size = len(adjoint)
    _pull_back[(triton.cdiv(size, BLOCK),)](
        theta,
        following,
        adjoint,
        pull,
        speeds,
        rates,
        gradients,
        places.upper,
        places.lower,
        dstep,
        size,
        BLOCK,
        num_warps=4,
    )
