"""What a Markov kernel is: two functions, ``init`` and ``step``, and no state of its own."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from pseudocoresets.energy import Target
from pseudocoresets.errors import InputError


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


S = TypeVar("S", bound=State)


class Kernel(Protocol[S]):
    """One transition that leaves (about) exp(-U / T) invariant, for one chain or a population of them."""

    @property
    def step_size(self) -> float: ...

    def init(self, position: Tensor, target: Target) -> S: ...

    def step(self, state: S, target: Target, generator: torch.Generator) -> tuple[S, Info]: ...


AnyKernel = Kernel[Any]


def positive_step_size(step_size: float) -> None:
    if not step_size > 0:
        raise InputError(f"A sampler's step size must be positive; got {step_size}.")
