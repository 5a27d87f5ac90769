"""Adam (Kingma and Ba 2015): no sampler, but a transition like theirs.

    m     <- b1 m + (1 - b1) g,      s <- b2 s + (1 - b2) g^2,      g = grad U(theta)
    theta <- theta - eta (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)

at step t = 1, 2, ... from m = s = 0. It has no noise at any temperature. The gradient may be stochastic (a minibatch, a
fresh augmentation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target, potential_and_gradient
from pseudocoresets.core.errors import InputError
from pseudocoresets.kernels.kernel import Info, positive_step_size

EPSILON = 1e-8


class AdamState(NamedTuple):
    position: Tensor
    mean: Tensor
    square: Tensor
    steps: int


@dataclass(frozen=True)
class Adam:
    """One step; ``step_size`` is the learning rate eta, ``beta1`` and ``beta2`` are b1 and b2."""

    step_size: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999

    adjusted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive_step_size(self.step_size)
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise InputError(f"Adam's two betas must lie in [0, 1); got {self.beta1} and {self.beta2}.")

    def init(self, position: Tensor, target: Target) -> AdamState:
        return AdamState(position, torch.zeros_like(position), torch.zeros_like(position), 0)

    def step(self, state: AdamState, target: Target, generator: torch.Generator) -> tuple[AdamState, Info]:
        potential, gradient = potential_and_gradient(target, state.position)
        mean = self.beta1 * state.mean + (1 - self.beta1) * gradient
        square = self.beta2 * state.square + (1 - self.beta2) * gradient.square()
        steps = state.steps + 1
        scale = (square / (1 - self.beta2**steps)).sqrt() + EPSILON
        position = state.position - self.step_size / (1 - self.beta1**steps) * mean / scale
        return AdamState(position, mean, square, steps), Info(potential)
