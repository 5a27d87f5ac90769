"""Unadjusted Langevin dynamics.

    theta <- theta - eta grad U(theta) + sqrt(2 eta T) xi,   xi ~ N(0, I)

Its stationary distribution is exp(-U / T) up to a bias of order eta: where U has curvature lambda, the
stationary variance is T / (lambda (1 - eta lambda / 2)) instead of T / lambda, and the chain is stable for
eta lambda < 2. The gradient may be stochastic (a minibatch, a fresh augmentation): its noise has variance
of order eta^2 against the injected 2 eta T. At T = 0 this is gradient descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target, potential_and_gradient
from pseudocoresets.kernels.kernel import Info, normal_like, positive_step_size


class LangevinState(NamedTuple):
    position: Tensor


@dataclass(frozen=True)
class Langevin:
    """One unadjusted Langevin step; ``step_size`` is eta."""

    step_size: float = 0.01

    adjusted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive_step_size(self.step_size)

    def init(self, position: Tensor, target: Target) -> LangevinState:
        return LangevinState(position)

    def step(self, state: LangevinState, target: Target, generator: torch.Generator) -> tuple[LangevinState, Info]:
        potential, gradient = potential_and_gradient(target, state.position)
        scale = math.sqrt(2 * self.step_size * target.temperature)
        noise = normal_like(gradient, generator)
        position = state.position.sub(gradient, alpha=self.step_size).add_(noise, alpha=scale)
        return LangevinState(position), Info(potential)
