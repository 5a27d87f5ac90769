"""Stochastic gradient descent with momentum: no sampler, but a transition like theirs.

    v     <- mu v + grad U(theta)
    theta <- theta - eta v

It has no noise at any temperature. The velocity starts at zero, and a change of eta leaves it as it is. The gradient
may be stochastic (a minibatch, a fresh augmentation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target, potential_and_gradient
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.state import Motion, at_rest
from pseudocoresets.kernels.kernel import Info, positive_step_size


@dataclass(frozen=True)
class SGD:
    """One step; ``step_size`` is the learning rate eta and ``momentum`` is mu."""

    step_size: float = 0.01
    momentum: float = 0.9

    adjusted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive_step_size(self.step_size)
        if not 0 <= self.momentum < 1:
            raise InputError(f"The momentum of SGD must lie in [0, 1); got {self.momentum}.")

    def init(self, position: Tensor, target: Target) -> Motion:
        return at_rest(position)

    def step(self, state: Motion, target: Target, generator: torch.Generator) -> tuple[Motion, Info]:
        potential, gradient = potential_and_gradient(target, state.position)
        velocity = self.momentum * state.velocity + gradient
        return Motion(state.position - self.step_size * velocity, velocity), Info(potential)
