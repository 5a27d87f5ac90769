"""The one potential that everything else calls: likelihood, prior, weights and temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError


@runtime_checkable
class Model(Protocol):
    """A likelihood per datum and a prior, for one parameter vector or a population of them."""

    @property
    def size(self) -> int:
        """Number of parameters."""
        ...

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """log p(y_i | x_i, theta): theta (size,) gives (m,); theta (chains, size) gives (chains, m)."""
        ...

    def log_prior(self, theta: Tensor) -> Tensor:
        """log pi0(theta) up to a constant: theta (size,) gives (); theta (chains, size) gives (chains,)."""
        ...


@runtime_checkable
class DifferentiatedModel(Model, Protocol):
    """A model that knows its gradients in closed form."""

    def log_likelihood_and_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """sum_i w_i log p(y_i | x_i, theta) and its gradient in theta, for one or many theta."""
        ...

    def log_prior_gradient(self, theta: Tensor) -> Tensor: ...


class Target(Protocol):
    """What a kernel samples: the density proportional to exp(-U(theta) / temperature)."""

    @property
    def temperature(self) -> float: ...

    def potential(self, theta: Tensor) -> Tensor:
        """U: theta (size,) gives (); theta (chains, size) gives (chains,)."""
        ...


@runtime_checkable
class DifferentiatedTarget(Target, Protocol):
    """A target that knows its gradient in closed form."""

    def potential_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """U and grad U, without a graph."""
        ...


@dataclass(frozen=True)
class FunctionTarget:
    """A target given by any function U(theta)."""

    potential: Callable[[Tensor], Tensor]
    temperature: float = 1.0
    blocks: Sequence[int] = ()


@runtime_checkable
class InBlocks(Protocol):
    """A model or target whose parameter vector is made of blocks, such as the tensors of a network."""

    @property
    def blocks(self) -> Sequence[int]:
        """Their sizes, in their order."""
        ...


def blocks_of(whole: object, size: int) -> Sequence[int]:
    """The sizes of the blocks of a model's or target's ``size`` parameters; one block where it knows none."""
    return (whole.blocks if isinstance(whole, InBlocks) else ()) or (size,)


def potential_and_gradient(target: Target, theta: Tensor) -> tuple[Tensor, Tensor]:
    """U(theta) and its gradient, both without a graph; in closed form where the target offers that."""
    if isinstance(target, (_ClosedFormTarget, DifferentiatedTarget)):  # a class is found sooner than a protocol
        return target.potential_and_gradient(theta)
    with torch.enable_grad():
        theta = theta.detach().requires_grad_()
        potential = target.potential(theta)
        (gradient,) = torch.autograd.grad(potential.sum(), theta)
    return potential.detach(), gradient


@dataclass(frozen=True)
class Energy:
    """The posterior of a weighted data set, per datum of the full data.

    E(x, theta)  = - sum_i w_i log p(y_i | x_i, theta)
    U(theta)     = (E(x, theta) - log pi0(theta)) / n
    posterior    = exp(-U / T),  T = temperature / n

    Weights that sum to ``n``, the size of the full data, give a coreset the full data's weight against the prior;
    ``temperature = 1`` is then the Bayes posterior, less is a cold one.
    """

    model: Model
    data_size: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise InputError(f"The temperature must not be negative; got {self.temperature}.")

    def per_datum(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """E(x, theta) / n, one value for each parameter set."""
        return -(weights * self.model.log_likelihood(theta, x, y)).sum(-1) / self.data_size

    def potential(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """U(theta), one value for each parameter set."""
        return self.per_datum(theta, x, y, weights) - self.model.log_prior(theta) / self.data_size

    def target(
        self, x: Tensor, y: Tensor, weights: Tensor, augment: Callable[[Tensor], Tensor] | None = None
    ) -> Target:
        """The posterior of these points as a target for a kernel, with its gradient in closed form where there is one.

        ``augment`` is applied to the points at each evaluation; drawing afresh each time makes the gradient stochastic.
        """
        temperature = self.temperature / self.data_size
        if isinstance(self.model, DifferentiatedModel):
            return _ClosedFormTarget(self.model, self.data_size, x, y, weights, temperature, augment)

        def potential(theta: Tensor) -> Tensor:
            seen = x if augment is None else augment(x)
            return self.potential(theta, seen, y, weights)

        return FunctionTarget(potential, temperature, blocks_of(self.model, self.model.size))


@dataclass(frozen=True)
class _ClosedFormTarget:
    """The same for models that know their gradient."""

    model: DifferentiatedModel
    data_size: int
    x: Tensor
    y: Tensor
    weights: Tensor
    temperature: float
    augment: Callable[[Tensor], Tensor] | None = None

    @property
    def blocks(self) -> Sequence[int]:
        return blocks_of(self.model, self.model.size)

    def potential(self, theta: Tensor) -> Tensor:
        likelihood = (self.weights * self.model.log_likelihood(theta, self._seen(), self.y)).sum(-1)
        return -(likelihood + self.model.log_prior(theta)) / self.data_size

    @torch.no_grad()
    def potential_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.model.log_likelihood_and_gradient(theta, self._seen(), self.y, self.weights)
        value, gradient = value + self.model.log_prior(theta), gradient + self.model.log_prior_gradient(theta)
        return -value / self.data_size, -gradient / self.data_size

    def _seen(self) -> Tensor:
        return self.x if self.augment is None else self.augment(self.x)


def without_noise(target: Target) -> Target:
    """The same potential at temperature zero, with its gradient in closed form where it had that."""
    if isinstance(target, _ClosedFormTarget | FunctionTarget):
        return replace(target, temperature=0.0)
    return FunctionTarget(target.potential, 0.0, target.blocks if isinstance(target, InBlocks) else ())


def require_signal(weights_sum: float, data_size: int, temperature: float) -> None:
    """Refuse points that weigh far less than the full data at a temperature that makes their posterior the prior.

    With weights of sum W << n, the step eta of a chain moves by eta W / n times the mean gradient, and its noise is
    that of n points at ``temperature``. Chains fit such weights where temperature n <= W: at the step eta n / W and the
    temperature W / n they are those of full weights at eta and 1.
    """
    if weights_sum < data_size / 2 and temperature * data_size > weights_sum * (1 + 1e-6):
        raise InputError(
            f"Weights that sum to {weights_sum:g} for {data_size:,} data have a posterior close to the prior at "
            f"temperature {temperature:g}, where chains are noise; give a temperature of at most "
            f"{weights_sum / data_size:.2g} and steps larger by {data_size / weights_sum:.3g}, or weights 'full'."
        )


def uniform_weights(points: int, data_size: int, device: str | torch.device = "cpu") -> Tensor:
    """w_i = n / m: a coreset of ``points`` points that weighs as much as the full data."""
    return torch.full((points,), data_size / points, device=device)
