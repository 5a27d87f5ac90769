"""Posteriors of weighted points as targets for the samplers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pseudocoresets.energy import Target, potential_and_gradient
from pseudocoresets.posterior.gaussian import Gaussian
from pseudocoresets.posterior.models import SmoothModel
from pseudocoresets.posterior.points import FullData, WeightedPoints, unit_weights


@dataclass(frozen=True)
class _AutogradTarget:
    """U(theta) = - sum_i w_i log p(y_i | x_i, theta) - log pi0(theta), at temperature one."""

    model: SmoothModel
    points: WeightedPoints
    temperature: float = 1.0

    def potential(self, theta: Tensor) -> Tensor:
        likelihood = self.model.log_likelihood(theta, self.points.x, self.points.y) @ self.points.weights
        return -likelihood - self.model.log_prior(theta)


@dataclass(frozen=True)
class _ClosedFormTarget(_AutogradTarget):
    """The same for models that know their gradient."""

    model: Any

    @torch.no_grad()
    def potential_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        points = self.points
        value, gradient = self.model.log_likelihood_and_gradient(theta, points.x, points.y, points.weights)
        return -value - self.model.log_prior(theta), -gradient - self.model.log_prior_gradient(theta)


def posterior_target(model: SmoothModel, points: WeightedPoints) -> Target:
    """The posterior of weighted points; its gradient is in closed form where the model has one."""
    if hasattr(model, "log_likelihood_and_gradient"):
        return _ClosedFormTarget(model, points)
    return _AutogradTarget(model, points)


def full_target(model: SmoothModel, data: FullData) -> Target:
    """The posterior of the full data, read into memory."""
    batches = list(data.batches())
    x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    return posterior_target(model, WeightedPoints(x, y, unit_weights(x)))


@dataclass(frozen=True)
class WhitenedTarget:
    """A target in coordinates phi with theta = mu + L phi, in which N(mu, L L^T) is standard."""

    target: Target
    gaussian: Gaussian

    @property
    def temperature(self) -> float:
        return self.target.temperature

    def theta(self, phi: Tensor) -> Tensor:
        return self.gaussian.mean + phi @ self.gaussian.factor.T

    def phi(self, theta: Tensor) -> Tensor:
        """The coordinates of theta (count, size)."""
        return torch.linalg.solve_triangular(self.gaussian.factor, (theta - self.gaussian.mean).T, upper=False).T

    def potential(self, phi: Tensor) -> Tensor:
        return self.target.potential(self.theta(phi))

    def potential_and_gradient(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = potential_and_gradient(self.target, self.theta(phi))
        return value, gradient @ self.gaussian.factor
