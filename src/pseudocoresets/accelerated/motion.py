"""The state of descents with momentum, forwards and backwards."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Motion(NamedTuple):
    """Where chains are, (chains, size), and their velocities v of the same shape."""

    position: Tensor
    velocity: Tensor

    def of(self, chains: list[int]) -> Motion:
        return Motion(self.position[chains], self.velocity[chains])

    def replaced(self, chains: list[int], by: Motion) -> Motion:
        """A copy in which these chains are as ``by`` has them, in the same order."""
        position, velocity = self.position.clone(), self.velocity.clone()
        position[chains], velocity[chains] = by
        return Motion(position, velocity)


class Costate(NamedTuple):
    """lambda_t and the pull q_{t-1} = lambda_t + mu q_t of each chain; at the end of a descent both are lambda_k."""

    position: Tensor
    pull: Tensor


def at_rest(position: Tensor) -> Motion:
    return Motion(position, torch.zeros_like(position))
