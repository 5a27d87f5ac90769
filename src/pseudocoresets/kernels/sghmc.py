"""Stochastic-gradient Hamiltonian Monte Carlo (Chen et al. 2014), in learning-rate and momentum-decay form.

    v     <- (1 - alpha) v - eta grad U(theta) + sqrt(2 alpha eta T) xi,   xi ~ N(0, I)
    theta <- theta + v

This is Chen et al.'s equation 15 without an estimate of the gradient's noise. It is the Euler
discretisation of

    d theta = r / m dt,   d r = - grad U dt - (C / m) r dt + sqrt(2 C T) dW

with step h, mass m and friction C, for the velocity v = h r / m: eta = h^2 / m and alpha = h C / m. So eta
is a learning rate, 1 - alpha is what SGD calls momentum, and the noise has variance 2 alpha T eta, twice
the friction times the temperature times the step.

Where U has curvature lambda, the stationary variance of theta is T / (lambda (1 - eta lambda / (2 (2 -
alpha)))): exact for small eta at every alpha, about half of Langevin's bias for small alpha, and Langevin
itself at alpha = 1. The chain is stable for eta lambda < 2 (2 - alpha). The velocity starts at zero and
forgets that in about 1 / alpha steps. The gradient may be stochastic (a minibatch, a fresh augmentation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target, potential_and_gradient
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.state import Motion, at_rest
from pseudocoresets.kernels.kernel import Info, normal_like, positive_step_size


@dataclass(frozen=True)
class SGHMC:
    """One SGHMC step; ``step_size`` is the learning rate eta and ``momentum_decay`` is alpha."""

    step_size: float = 0.01
    momentum_decay: float = 0.1

    adjusted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive_step_size(self.step_size)
        if not 0 < self.momentum_decay <= 1:
            raise InputError(f"SGHMC's momentum decay must lie in (0, 1]; got {self.momentum_decay}.")

    def init(self, position: Tensor, target: Target) -> Motion:
        return at_rest(position)

    def step(self, state: Motion, target: Target, generator: torch.Generator) -> tuple[Motion, Info]:
        potential, gradient = potential_and_gradient(target, state.position)
        scale = math.sqrt(2 * self.momentum_decay * self.step_size * target.temperature)
        noise = scale * normal_like(gradient, generator)
        velocity = (1 - self.momentum_decay) * state.velocity - self.step_size * gradient + noise
        return Motion(state.position + velocity, velocity), Info(potential)
