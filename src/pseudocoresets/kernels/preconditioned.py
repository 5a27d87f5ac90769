"""SGHMC with a mass for each block of parameters, such as the weights of one layer (``SGHMC`` has one for all).

    v     <- (1 - alpha) v - eta P grad U(theta) + sqrt(2 alpha eta T P) xi,   xi ~ N(0, I)
    theta <- theta + v

P is diagonal and does not change along a chain: it is the inverse of a mass matrix, and exp(-U / T) is invariant up to
the bias of SGHMC, of which the curvature P^(1/2) (grad^2 U) P^(1/2) takes the place of grad^2 U. With alpha = 1 this is
Langevin's step with a preconditioner (Li et al. 2016), without the term for one that varies.

A block b of parameters gets, from the gradient g at the place where the chain starts,

    P_b = ((s_b / s + delta) / (1 + delta))^(-1/2),   s_b = mean of g_j^2 over the block,   s = that over all,

delta = 0.001: Adam's scaling, by blocks, and relative to the whole, so that eta means what it means for SGHMC. A
network's blocks are the tensors of its parameters. Other models have one block, and are sampled as by SGHMC.

The classifier of a ConvNet has gradients three times as large as its convolutions; with one step size for both, the one
is shaken where the other hardly moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target, blocks_of, potential_and_gradient
from pseudocoresets.kernels.kernel import Info, normal_like
from pseudocoresets.kernels.sghmc import SGHMC

DAMPING = 1e-3


class PreconditionedMotion(NamedTuple):
    position: Tensor
    velocity: Tensor
    speeds: Tensor
    """The diagonal of P."""


@dataclass(frozen=True)
class PreconditionedSGHMC:
    """One step; ``step_size`` is eta and ``momentum_decay`` is alpha."""

    step_size: float = 0.0125
    momentum_decay: float = 0.1

    adjusted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        SGHMC(self.step_size, self.momentum_decay)  # refuses what neither can take

    def init(self, position: Tensor, target: Target) -> PreconditionedMotion:
        return PreconditionedMotion(position, torch.zeros_like(position), speeds_at(position, target))

    def step(
        self, state: PreconditionedMotion, target: Target, generator: torch.Generator
    ) -> tuple[PreconditionedMotion, Info]:
        potential, gradient = potential_and_gradient(target, state.position)
        scale = math.sqrt(2 * self.momentum_decay * self.step_size * target.temperature)
        noise = scale * state.speeds.sqrt() * normal_like(gradient, generator)
        velocity = (1 - self.momentum_decay) * state.velocity - self.step_size * state.speeds * gradient + noise
        return PreconditionedMotion(state.position + velocity, velocity, state.speeds), Info(potential)


def speeds_at(position: Tensor, target: Target) -> Tensor:
    """P for chains that start at ``position``, of the same shape."""
    _, gradient = potential_and_gradient(target, position)
    return relative_speeds(gradient, blocks_of(target, position.shape[-1]))


def speeds_one_by_one(positions: Tensor, target: Target) -> Tensor:
    """The same for chains (chains, size), in the memory that one of them needs."""
    return torch.cat([speeds_at(position[None], target) for position in positions])


def relative_speeds(gradient: Tensor, blocks: Sequence[int]) -> Tensor:
    """P from gradients (..., size) and the sizes of the blocks, in their order; 1 for all where gradients are zero."""
    squares = gradient.square()
    tiny = torch.finfo(squares.dtype).tiny
    relative = squares / squares.mean(-1, keepdim=True).clamp_min(tiny)
    means = [block.mean(-1, keepdim=True).expand_as(block) for block in relative.split(list(blocks), -1)]
    speeds = ((torch.cat(means, -1) + DAMPING) / (1 + DAMPING)).rsqrt()
    return torch.where(squares.amax(-1, keepdim=True) > tiny, speeds, torch.ones_like(speeds))
