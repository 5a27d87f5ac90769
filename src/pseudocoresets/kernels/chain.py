"""Running a kernel: k steps, with or without keeping the positions on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target, without_noise
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.kernels.adaptation import with_step_size
from pseudocoresets.kernels.kernel import AnyKernel, Info, State, is_adjusted
from pseudocoresets.kernels.schedules import Schedule, explores


class Chain(NamedTuple):
    """The end of a run and what was kept of it."""

    position: Tensor
    kept: Tensor
    """Kept positions, ``(kept, *position.shape)``."""
    potentials: Tensor
    """U before each step, ``(steps, chains)``."""
    acceptance: Tensor | None = None
    """Mean acceptance probability of each chain, for kernels that accept or reject."""


def transitions(
    kernel: AnyKernel,
    position: Tensor,
    target: Target,
    steps: int,
    generator: torch.Generator,
    schedule: Schedule | None = None,
) -> Iterator[tuple[State, Info]]:
    """Where the chain is after each of ``steps`` steps, and what the step tells.

    ``schedule`` scales the step size of each step. In the exploration phases of a cyclical schedule an
    unadjusted kernel runs without noise.
    """
    state = kernel.init(position, target)
    for t in range(steps):
        scheduled = kernel if schedule is None else with_step_size(kernel, kernel.step_size * schedule(t))
        state, info = scheduled.step(state, _target_at(t, target, kernel, schedule), generator)
        yield state, info


def advance(
    kernel: AnyKernel,
    position: Tensor,
    target: Target,
    steps: int,
    generator: torch.Generator,
    on_step: Callable[[], object] | None = None,
) -> Tensor:
    """The position after ``steps`` steps; memory does not grow with ``steps``."""
    for state, _ in transitions(kernel, position, target, steps, generator):
        position = state.position
        if on_step is not None:
            on_step()
    return position.detach()


def run_chain(
    kernel: AnyKernel,
    position: Tensor,
    target: Target,
    steps: int,
    generator: torch.Generator,
    keep_at: set[int] | range = range(0),
    schedule: Schedule | None = None,
    on_step: Callable[[], object] | None = None,
) -> Chain:
    """Run ``steps`` steps and keep the positions after those steps (counted from 1) in ``keep_at``.

    ``on_step`` is called after each.
    """
    kept, potentials, acceptances = [], [], []
    for t, (state, info) in enumerate(transitions(kernel, position, target, steps, generator, schedule), 1):
        position = state.position
        potentials.append(info.potential)
        if info.acceptance is not None:
            acceptances.append(info.acceptance)
        if t in keep_at:
            kept.append(position)
        if on_step is not None:
            on_step()
    if not torch.isfinite(position).all():
        raise DivergenceError(
            f"The sampler left the finite numbers (step size {kernel.step_size}); lower its step size."
        )
    return Chain(
        position,
        torch.stack(kept) if kept else position.new_empty((0, *position.shape)),
        torch.stack(potentials) if potentials else position.new_empty(0),
        torch.stack(acceptances).mean(0) if acceptances else None,
    )


def _target_at(t: int, target: Target, kernel: AnyKernel, schedule: Schedule | None) -> Target:
    """The target at temperature zero where a cyclical schedule explores, else as it is."""
    if explores(schedule, t) and not is_adjusted(kernel):
        return without_noise(target)
    return target
