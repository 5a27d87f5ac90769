"""Dual averaging of the step size (Nesterov 2009; Hoffman & Gelman 2014, section 3.2).

With alpha_m the acceptance probability of step m, delta the one wanted and eps_1 the first step size:

    H_m           = (1 - 1/(m + t0)) H_{m-1} + (delta - alpha_m) / (m + t0)
    log eps_{m+1} = log(10 eps_1) - sqrt(m) / gamma * H_m
    log eps-bar   = m^-kappa log eps_{m+1} + (1 - m^-kappa) log eps-bar

Steps are made with eps, which keeps moving; eps-bar, its weighted average, is what the warm-up returns.
Adapting breaks the invariance of the target, so it belongs in the warm-up only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.kernels.kernel import AdjustedKernel, AnyKernel, positive_step_size


@dataclass(frozen=True)
class DualAveraging:
    """The state of the recursion above."""

    first_step_size: float
    target_acceptance: float = 0.8
    gamma: float = 0.05
    t0: float = 10.0
    kappa: float = 0.75
    updates: int = 0
    gap: float = 0.0
    """H_m, the running mean of how much acceptance is missing."""
    log_step_size: float = math.nan
    log_average: float = 0.0

    def __post_init__(self) -> None:
        positive_step_size(self.first_step_size)
        if not 0 < self.target_acceptance < 1:
            raise InputError(f"The target acceptance must lie strictly between 0 and 1; got {self.target_acceptance}.")

    @property
    def step_size(self) -> float:
        """eps, for the next step."""
        return math.exp(self.log_step_size) if self.updates else self.first_step_size

    @property
    def average(self) -> float:
        """eps-bar, for after the warm-up."""
        return math.exp(self.log_average) if self.updates else self.first_step_size

    def update(self, acceptance: float) -> DualAveraging:
        """The state after one more step; an acceptance that is not a number counts as a rejection."""
        acceptance = acceptance if math.isfinite(acceptance) else 0.0
        m = self.updates + 1
        share = 1 / (m + self.t0)
        gap = (1 - share) * self.gap + share * (self.target_acceptance - acceptance)
        log_step_size = math.log(10 * self.first_step_size) - math.sqrt(m) / self.gamma * gap
        weight = m**-self.kappa
        log_average = weight * log_step_size + (1 - weight) * self.log_average
        return replace(self, updates=m, gap=gap, log_step_size=log_step_size, log_average=log_average)


class WarmUp(NamedTuple):
    """The kernel with its step size adapted, and where the chains were when the warm-up ended."""

    kernel: Any
    position: Tensor


def warm_up(
    kernel: AnyKernel,
    position: Tensor,
    target: Target,
    steps: int,
    generator: torch.Generator,
    target_acceptance: float | None = None,
    on_step: Callable[[], object] | None = None,
) -> WarmUp:
    """Run ``steps`` steps of an adjusted kernel and adapt its step size to ``target_acceptance``.

    A population shares one step size, adapted to the mean acceptance of its chains. ``target_acceptance``
    defaults to the kernel's own: 0.574 for MALA, 0.8 for HMC and NUTS. ``on_step`` is called after each step.
    """
    if not isinstance(kernel, AdjustedKernel):
        raise InputError(
            f"{type(kernel).__name__} accepts every step, so no acceptance rate can set its step size; use MALA or HMC."
        )
    if steps < 1:
        raise InputError(f"Adapting a step size needs at least one step; got {steps}.")
    wanted = kernel.preferred_acceptance if target_acceptance is None else target_acceptance
    averaging = DualAveraging(kernel.step_size, wanted)
    state = kernel.init(position, target)
    for _ in range(steps):
        state, info = with_step_size(kernel, averaging.step_size).step(state, target, generator)
        assert info.acceptance is not None
        averaging = averaging.update(float(info.acceptance.mean()))
        if on_step is not None:
            on_step()
    if not torch.isfinite(state.position).all():
        raise DivergenceError("The warm-up left the finite numbers; start from another position.")
    return WarmUp(with_step_size(kernel, averaging.average), state.position)


def with_step_size(kernel: AnyKernel, step_size: float) -> AnyKernel:
    """The same kernel with another step size."""
    changed: AnyKernel = replace(kernel, step_size=step_size)  # type: ignore[type-var]
    return changed
