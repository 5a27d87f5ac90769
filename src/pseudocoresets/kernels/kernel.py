"""What a Markov kernel is: two functions, ``init`` and ``step``, and no state of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from pseudocoresets.core.energy import Target, potential_and_gradient
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import Progress


class Info(NamedTuple):
    """What a step tells about itself, one value for each chain."""

    potential: Tensor
    """U at the position where the step began."""
    acceptance: Tensor | None = None
    """Acceptance probability, for kernels that accept or reject."""


class State(Protocol):
    """Where a chain is; kernels add what they need, such as a momentum."""

    @property
    def position(self) -> Tensor: ...


class EvaluatedState(NamedTuple):
    """Where a chain is, with U and its gradient there, which the next step begins with."""

    position: Tensor
    potential: Tensor
    gradient: Tensor

    @classmethod
    def at(cls, position: Tensor, target: Target) -> EvaluatedState:
        return cls(position, *potential_and_gradient(target, position))


S = TypeVar("S", bound=State)


class Kernel(Protocol[S]):
    """One transition that leaves (about) exp(-U / T) invariant, for one chain or a population of them.

    An adjusted kernel (:class:`AdjustedKernel`) accepts or rejects, is exact, and needs a potential that is a
    function of theta alone; an unadjusted one is biased and allows a stochastic potential.
    """

    @property
    def step_size(self) -> float: ...

    def init(self, position: Tensor, target: Target) -> S: ...

    def step(self, state: S, target: Target, generator: torch.Generator) -> tuple[S, Info]: ...


AnyKernel = Kernel[Any]


@runtime_checkable
class AdjustedKernel(Protocol):
    """What a kernel that accepts or rejects says about itself."""

    @property
    def adjusted(self) -> bool: ...

    @property
    def preferred_acceptance(self) -> float:
        """The acceptance to which a warm-up adapts the step size."""
        ...


class Run(NamedTuple):
    """Draws after a warm-up, and how the sampling went, one value for each chain."""

    samples: Tensor
    """(chains, draws, size)"""
    acceptance: Tensor | None
    """Mean acceptance statistic of the draws, of kernels that accept or reject."""
    step_size: Tensor
    divergences: Tensor
    """How many draws met a divergence; any at all casts doubt on the result."""
    gradients: Tensor
    """Evaluations of the gradient after the warm-up."""


@runtime_checkable
class RunsItself(Protocol):
    """A kernel with a way of its own to make a whole run: its warm-up adapts more than a step size."""

    def run(
        self, target: Target, position: Tensor, draws: int, warmup: int, seed: int, progress: Progress | None = None
    ) -> Run:
        """``draws`` draws of each chain from ``position`` (chains, size), after ``warmup`` more that adapt."""
        ...


def is_adjusted(kernel: object) -> bool:
    """Whether the kernel accepts or rejects, and so needs a potential without fresh randomness."""
    return isinstance(kernel, AdjustedKernel) and kernel.adjusted


def positive_step_size(step_size: float) -> None:
    if not step_size > 0:
        raise InputError(f"A sampler's step size must be positive; got {step_size}.")


def positive_temperature(temperature: float, sampler: str) -> None:
    if not temperature > 0:
        raise InputError(f"{sampler} needs a positive temperature; got {temperature}.")


def normal_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """N(0, I) in the shape, type and place of ``tensor``."""
    return torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=tensor.dtype)


def accept_or_reject(
    proposal: Iterable[Tensor], current: Iterable[Tensor], log_ratio: Tensor, generator: torch.Generator
) -> tuple[list[Tensor], Tensor]:
    """Each chain's proposal with probability min(1, exp(log_ratio)), else what it has; and that probability.

    ``log_ratio`` has one value for each chain. A ratio that is not a number, as from an overflow, rejects.
    """
    acceptance = log_ratio.nan_to_num(nan=-torch.inf).clamp(max=0).exp()
    drawn = torch.rand(acceptance.shape, generator=generator, device=acceptance.device, dtype=acceptance.dtype)
    accepted = drawn < acceptance
    chosen = [
        torch.where(accepted.view(accepted.shape + (1,) * (new.ndim - accepted.ndim)), new, old)
        for new, old in zip(proposal, current, strict=True)
    ]
    return chosen, acceptance
