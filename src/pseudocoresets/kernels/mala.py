"""The Metropolis-adjusted Langevin algorithm (Roberts & Tweedie 1996).

    theta' = theta - eta grad U(theta) + sqrt(2 eta T) xi,   xi ~ N(0, I)

is accepted with probability min(1, exp(a)), where

    a = - (U(theta') - U(theta)) / T + s . (xi - s / 2),  s = sqrt(eta / 2T) (grad U(theta) + grad U(theta'))

The second term is the logarithm of q(theta | theta') / q(theta' | theta), the ratio of the proposal
densities. The target is left exactly invariant, so U must be a function of theta alone: a stochastic
gradient or a fresh augmentation makes the acceptance probability wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target
from pseudocoresets.kernels.kernel import (
    EvaluatedState,
    Info,
    accept_or_reject,
    normal_like,
    positive_step_size,
    positive_temperature,
)


@dataclass(frozen=True)
class MALA:
    """One Metropolis-adjusted Langevin step; ``step_size`` is eta."""

    step_size: float = 0.01

    adjusted: ClassVar[bool] = True
    preferred_acceptance: ClassVar[float] = 0.574

    def __post_init__(self) -> None:
        positive_step_size(self.step_size)

    def init(self, position: Tensor, target: Target) -> EvaluatedState:
        positive_temperature(target.temperature, "MALA")
        return EvaluatedState.at(position, target)

    def step(self, state: EvaluatedState, target: Target, generator: torch.Generator) -> tuple[EvaluatedState, Info]:
        eta, temperature = self.step_size, target.temperature
        noise = normal_like(state.position, generator)
        position = state.position - eta * state.gradient + math.sqrt(2 * eta * temperature) * noise
        proposal = EvaluatedState.at(position, target)
        drift = math.sqrt(eta / (2 * temperature)) * (state.gradient + proposal.gradient)
        descent = (state.potential - proposal.potential) / temperature
        log_ratio = descent + (drift * (noise - drift / 2)).sum(-1)
        chosen, acceptance = accept_or_reject(proposal, state, log_ratio, generator)
        return EvaluatedState(*chosen), Info(state.potential, acceptance)
