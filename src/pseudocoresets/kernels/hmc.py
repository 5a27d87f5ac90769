"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011).

With a momentum p ~ N(0, T M) drawn afresh and H(theta, p) = U(theta) + p^T M^-1 p / 2, take L leapfrog steps

    p     <- p - (eps / 2) grad U(theta)
    theta <- theta + eps M^-1 p
    p     <- p - (eps / 2) grad U(theta)

and accept the end with probability min(1, exp((H_start - H_end) / T)). The momentum carries the
temperature, so a stable step size depends on U alone: eps < 2 / sqrt(lambda) where U has curvature lambda
(M = I). One leapfrog step (L = 1) is MALA with eta = eps^2 / 2. A trajectory of length L eps near pi / sqrt(lambda)
ends near minus its start and mixes slowly in that direction: change L if R-hat says so.

The target is left exactly invariant, so U must be a function of theta alone: a stochastic gradient or a fresh
augmentation makes the acceptance probability wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target
from pseudocoresets.core.errors import InputError
from pseudocoresets.kernels.kernel import (
    EvaluatedState,
    Info,
    accept_or_reject,
    normal_like,
    positive_step_size,
    positive_temperature,
)


@dataclass(frozen=True)
class HMC:
    """One trajectory of L = ``leapfrog_steps``; ``step_size`` is eps, ``mass`` the diagonal (size,) of M."""

    step_size: float = 0.01
    leapfrog_steps: int = 10
    mass: Tensor | None = field(default=None, compare=False)

    adjusted: ClassVar[bool] = True
    preferred_acceptance: ClassVar[float] = 0.8

    def __post_init__(self) -> None:
        positive_step_size(self.step_size)
        if self.leapfrog_steps < 1:
            raise InputError(f"HMC needs at least one leapfrog step; got {self.leapfrog_steps}.")

    def init(self, position: Tensor, target: Target) -> EvaluatedState:
        positive_temperature(target.temperature, "HMC")
        if self.mass is not None and self.mass.shape != position.shape[-1:]:
            raise InputError(
                f"HMC's mass needs one value for each of the {position.shape[-1]} parameters; "
                f"got shape {tuple(self.mass.shape)}."
            )
        return EvaluatedState.at(position, target)

    def step(self, state: EvaluatedState, target: Target, generator: torch.Generator) -> tuple[EvaluatedState, Info]:
        scale = math.sqrt(target.temperature)
        mass: Tensor | float = 1.0 if self.mass is None else self.mass
        start = scale * mass**0.5 * normal_like(state.position, generator)
        proposal, end = self._leapfrog(state, start, mass, target)
        kinetic_change = ((end - start) * (end + start) / mass).sum(-1) / 2
        log_ratio = (state.potential - proposal.potential - kinetic_change) / target.temperature
        chosen, acceptance = accept_or_reject(proposal, state, log_ratio, generator)
        return EvaluatedState(*chosen), Info(state.potential, acceptance)

    def _leapfrog(
        self, state: EvaluatedState, momentum: Tensor, mass: Tensor | float, target: Target
    ) -> tuple[EvaluatedState, Tensor]:
        """The end of the trajectory and its momentum."""
        for _ in range(self.leapfrog_steps):
            half = momentum - self.step_size / 2 * state.gradient
            position = state.position + self.step_size * half / mass
            state = EvaluatedState.at(position, target)
            momentum = half - self.step_size / 2 * state.gradient
        return state, momentum
