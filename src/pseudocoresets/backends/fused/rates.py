"""Kernels as the rates of captured steps."""

from __future__ import annotations

from typing import TypeAlias, TypeGuard

from pseudocoresets.core.state import Rates, sampling_rates
from pseudocoresets.kernels import SGD, SGHMC, AnyKernel, Langevin, PreconditionedSGHMC, Schedule, explores

FusedKernel: TypeAlias = Langevin | SGHMC | PreconditionedSGHMC | SGD


def is_fused(kernel: AnyKernel) -> TypeGuard[FusedKernel]:
    """Whether captured steps compute this kernel; one derived from it may step otherwise."""
    return type(kernel) in (Langevin, SGHMC, PreconditionedSGHMC, SGD)


def rates_at(t: int, kernel: FusedKernel, schedule: Schedule | None, temperature: float) -> Rates:
    """Step t of a kernel under a schedule; the exploration phases of a cyclical one are without noise."""
    now, before = (kernel.step_size * (1.0 if schedule is None else schedule(max(0, step))) for step in (t, t - 1))
    if isinstance(kernel, SGD):
        return Rates(now, momentum=kernel.momentum)
    momentum = 1 - kernel.momentum_decay if isinstance(kernel, SGHMC | PreconditionedSGHMC) else 0.0
    return sampling_rates(now, 0.0 if explores(schedule, t) else temperature, momentum, before)
