"""Where chains are, forwards and backwards in time, and how one of their steps goes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

STEP_SIZE = "step_size"
"""The name of a chain's step size among the learned hyper-parameters."""


class Motion(NamedTuple):
    """Where chains are, (chains, size), and their velocities v of the same shape."""

    position: Tensor
    velocity: Tensor

    def of(self, chains: list[int] | Tensor) -> Motion:
        return Motion(self.position[chains], self.velocity[chains])

    def replaced(self, chains: list[int] | Tensor, by: Motion) -> Motion:
        """A copy in which these chains are as ``by`` has them, in the same order."""
        position, velocity = self.position.clone(), self.velocity.clone()
        position[chains], velocity[chains] = by
        return Motion(position, velocity)


def at_rest(position: Tensor) -> Motion:
    return Motion(position, torch.zeros_like(position))


class AdjointState(NamedTuple):
    """The adjoint of each chain, lambda_t = dL/dtheta_t, and its pull q_{t-1} = P lambda_t + mu q_t.

    At the end of a descent they are lambda_k and P lambda_k.
    """

    adjoint: Tensor
    pull: Tensor


class Rates(NamedTuple):
    """One step: v <- momentum v + grad U(theta) + noise N(0, I);  theta <- theta - step_size v."""

    step_size: float
    noise: float = 0.0
    momentum: float = 0.0


def sampling_rates(
    step_size: float, temperature: float, momentum: float = 0.0, last_step_size: float | None = None
) -> Rates:
    """A step of SGHMC, whose velocity is -eta v, or, without momentum, of Langevin.

    noise = sqrt(2 (1 - mu) T / eta). A step size that differs from the last leaves the velocity as it was: mu v is
    taken times last / eta.
    """
    noise = math.sqrt(2 * (1 - momentum) * temperature / step_size)
    last = step_size if last_step_size is None else last_step_size
    return Rates(step_size, noise, momentum * last / step_size)
