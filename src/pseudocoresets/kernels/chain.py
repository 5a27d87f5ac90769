"""Running a kernel: k steps, with or without keeping the positions on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pseudocoresets.energy import Target
from pseudocoresets.errors import DivergenceError
from pseudocoresets.kernels.kernel import AnyKernel

Schedule: TypeAlias = Callable[[int], float]
"""The factor on the step size at step t."""


class Chain(NamedTuple):
    """The end of a run and what was kept of it."""

    position: Tensor
    kept: Tensor
    """Kept positions, ``(kept, *position.shape)``."""
    potentials: Tensor
    """U before each step, ``(steps, chains)``."""


def advance(
    kernel: AnyKernel, position: Tensor, target: Target, steps: int, generator: torch.Generator
) -> Tensor:
    """The position after ``steps`` steps; memory does not grow with ``steps``."""
    state = kernel.init(position, target)
    for _ in range(steps):
        state, _ = kernel.step(state, target, generator)
    end: Tensor = state.position
    return end.detach()


def run_chain(
    kernel: AnyKernel,
    position: Tensor,
    target: Target,
    steps: int,
    generator: torch.Generator,
    keep_at: set[int] | range = range(0),
    schedule: Schedule | None = None,
    on_step: Callable[[int], Any] | None = None,
) -> Chain:
    """Run ``steps`` steps and keep the positions after those steps (counted from 1) that are in ``keep_at``."""
    state = kernel.init(position, target)
    kept, potentials = [], []
    for t in range(1, steps + 1):
        now = kernel if schedule is None else _with_step_size(kernel, kernel.step_size * schedule(t - 1))
        state, info = now.step(state, target, generator)
        potentials.append(info.potential)
        if t in keep_at:
            kept.append(state.position)
        if on_step is not None:
            on_step(t)
    if not torch.isfinite(state.position).all():
        raise DivergenceError(
            f"The sampler left the finite numbers (step size {kernel.step_size}); lower its step size."
        )
    shape = (0, *state.position.shape)
    return Chain(
        state.position,
        torch.stack(kept) if kept else state.position.new_empty(shape),
        torch.stack(potentials) if potentials else state.position.new_empty(0),
    )


def _with_step_size(kernel: AnyKernel, step_size: float) -> AnyKernel:
    changed: AnyKernel = replace(kernel, step_size=step_size)  # type: ignore[type-var]
    return changed
