"""The one potential that everything else calls: likelihood, prior, weights and temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.errors import InputError
from pseudocoresets.networks.network import Network


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


@dataclass(frozen=True)
class Classifier:
    """A network with a categorical likelihood and the prior N(0, prior_scale^2 I)."""

    network: Network
    prior_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.prior_scale > 0:
            raise InputError(f"The prior scale must be positive; got {self.prior_scale}.")

    @property
    def size(self) -> int:
        return self.network.size

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """log softmax(f(x_i; theta))[y_i], or its expectation under soft labels ``y`` (m, classes)."""
        logits = self.network.logits(theta, x)
        log_probabilities = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
        if y.is_floating_point():
            return (log_probabilities * y).sum(-1)
        index = y[..., None].expand(*log_probabilities.shape[:-1], 1)
        return log_probabilities.gather(-1, index).squeeze(-1)

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1) / (2 * self.prior_scale**2)

    def decay(self, data_size: int) -> float:
        """What the prior adds to grad U, per unit of theta: 1 / (s^2 n)."""
        return 1 / (self.prior_scale**2 * data_size)


class Target(Protocol):
    """What a kernel samples: the density proportional to exp(-U(theta) / temperature)."""

    @property
    def temperature(self) -> float: ...

    def potential(self, theta: Tensor) -> Tensor:
        """U: theta (size,) gives (); theta (chains, size) gives (chains,)."""
        ...


@dataclass(frozen=True)
class FunctionTarget:
    """A target given by any function U(theta)."""

    potential: Callable[[Tensor], Tensor]
    temperature: float = 1.0


def potential_and_gradient(target: Target, theta: Tensor) -> tuple[Tensor, Tensor]:
    """U(theta) and its gradient, both without a graph; in closed form where the target offers that."""
    closed_form = getattr(target, "potential_and_gradient", None)
    if closed_form is not None:
        values: tuple[Tensor, Tensor] = closed_form(theta)
        return values
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
    ) -> FunctionTarget:
        """The posterior of these points as a target for a kernel.

        ``augment`` is applied to the points at each evaluation; drawing afresh each time makes the gradient stochastic.
        """

        def potential(theta: Tensor) -> Tensor:
            seen = x if augment is None else augment(x)
            return self.potential(theta, seen, y, weights)

        return FunctionTarget(potential, self.temperature / self.data_size)


def uniform_weights(points: int, data_size: int, device: str | torch.device = "cpu") -> Tensor:
    """w_i = n / m: a coreset of ``points`` points that weighs as much as the full data."""
    return torch.full((points,), data_size / points, device=device)
