"""Unadjusted Langevin dynamics.

    theta <- theta - eta grad U(theta) + sqrt(2 eta T) N(0, I)

Its stationary distribution is exp(-U / T) up to a bias of order eta: on a Gaussian target with precision lambda (per T) the
stationary variance is T / (lambda (1 - eta lambda / 2)) instead of T / lambda.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.energy import Target, potential_and_gradient
from pseudocoresets.kernels.kernel import Info, positive_step_size


class LangevinState(NamedTuple):
    position: Tensor


@dataclass(frozen=True)
class Langevin:
    """One unadjusted Langevin step; ``step_size`` is eta."""

    step_size: float = 0.01

    def __post_init__(self) -> None:
        positive_step_size(self.step_size)

    def init(self, position: Tensor, target: Target) -> LangevinState:
        return LangevinState(position)

    def step(
        self, state: LangevinState, target: Target, generator: torch.Generator
    ) -> tuple[LangevinState, Info]:
        potential, gradient = potential_and_gradient(target, state.position)
        noise = torch.randn(gradient.shape, generator=generator, device=gradient.device, dtype=gradient.dtype)
        scale = math.sqrt(2 * self.step_size * target.temperature)
        position = state.position - self.step_size * gradient + scale * noise
        return LangevinState(position), Info(potential)
