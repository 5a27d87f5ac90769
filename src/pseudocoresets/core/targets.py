"""Posteriors of weighted points as targets for the samplers."""

from __future__ import annotations

from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pseudocoresets.core.energy import DifferentiatedModel, Energy, Model, Target, potential_and_gradient
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import FullData, LargeData, Points, sum_over, unit_weights

Array: TypeAlias = NDArray[np.float64]

AT_ONCE = 4_000_000
"""Log-likelihoods that are held in memory."""
LARGEST_READ = 2**30
"""Bytes of data that come in parts and may be put together."""
LARGEST_COPIED = 2_000_000
"""Numbers in a design matrix of which a whitened copy is made."""


@runtime_checkable
class LinearPredictor(DifferentiatedModel, Protocol):
    """A model of eta = x . theta with the prior N(0, prior_scale^2 I) that also evaluates itself in NumPy."""

    @property
    def prior_scale(self) -> float: ...

    def density_and_slope(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """log p(y | eta) up to a term in y alone, and its derivative in eta, element by element."""
        ...


def posterior_target(model: Model, points: Points) -> Target:
    """U(theta) = - sum_i w_i log p(y_i | x_i, theta) - log pi0(theta) at temperature one."""
    return Energy(model, 1).target(points.x, points.y, points.weights)


def log_likelihoods(model: Model, theta: Tensor, points: Points) -> Tensor:
    """sum_i w_i log p(y_i | x_i, theta_s) for each of many theta (draws, size), in parts that fit in memory."""
    parts = theta.split(max(1, AT_ONCE // len(points)))
    return torch.cat([model.log_likelihood(part, points.x, points.y) @ points.weights for part in parts])


def full_log_likelihoods(model: Model, theta: Tensor, data: FullData | Points) -> Tensor:
    """The same over all the data, each of weight one unless they are weighted points; one pass."""
    if isinstance(data, Points):
        return log_likelihoods(model, theta, data)
    return sum_over(data, partial(_batch_log_likelihoods, model, theta))[0]


def _batch_log_likelihoods(model: Model, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor]:
    return (log_likelihoods(model, theta, Points(x, y, unit_weights(x))),)


def all_points(data: FullData) -> Points:
    """The full data, read into memory, with weights of one; not those that are too many for it."""
    if isinstance(data, LargeData) and 8 * len(data) * data.some.x.shape[1] > LARGEST_READ:
        raise InputError(
            f"This method needs all {len(data):,} rows in memory; use moments, cd or uniform, which read them in parts."
        )
    batches = list(data.batches())
    x, y = batches[0] if len(batches) == 1 else (torch.cat(parts) for parts in zip(*batches, strict=True))
    return Points(x, y, unit_weights(x))


def whitened_target(model: Model, points: Points, gaussian: Gaussian) -> WhitenedTarget:
    """The posterior of weighted points in coordinates phi with theta = mu + L phi; the fastest form there is."""
    if isinstance(model, LinearPredictor) and points.x.numel() <= LARGEST_COPIED:
        return WhitenedPredictorTarget(model, points, gaussian)
    return WhitenedTarget(posterior_target(model, points), gaussian)


class WhitenedTarget:
    """A target in coordinates phi with theta = mu + L phi, in which N(mu, L L^T) is standard."""

    def __init__(self, target: Target, gaussian: Gaussian) -> None:
        self.target, self.gaussian = target, gaussian

    @property
    def temperature(self) -> float:
        return self.target.temperature

    def theta(self, phi: Tensor) -> Tensor:
        return self.gaussian.unwhitened(phi)

    def phi(self, theta: Tensor) -> Tensor:
        """The coordinates of theta (count, size)."""
        return self.gaussian.whitened(theta)

    def potential(self, phi: Tensor) -> Tensor:
        return self.target.potential(self.theta(phi))

    def potential_and_gradient(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = potential_and_gradient(self.target, self.theta(phi))
        return value, gradient @ self.gaussian.factor


class WhitenedPredictorTarget(WhitenedTarget):
    """The same for a linear predictor with few points, in NumPy on the whitened design.

    With eta = (X L) phi + X mu and the prior N(0, s^2 I), whose part of the potential is |mu + L phi|^2 / (2 s^2),
        U(phi)      = phi . (A phi / 2 + b) - sum_i w_i log p(y_i | eta_i) + constant
        grad U(phi) = A phi + b - (X L)^T (w * slope)
    where A = L^T L / s^2, b = L^T mu / s^2, slope_i = d log p(y_i | eta_i) / d eta_i, and the constant is left out.
    """

    def __init__(self, model: LinearPredictor, points: Points, gaussian: Gaussian) -> None:
        super().__init__(posterior_target(model, points), gaussian)
        precision, factor, mean = model.prior_scale**-2, gaussian.factor.numpy(), gaussian.mean.numpy()
        x, weights = points.x.double().numpy(), points.weights.double().numpy()
        self._density_and_slope = model.density_and_slope
        self._design, self._offset = x @ factor, x @ mean
        self._weighted_design = weights[:, None] * self._design
        self._targets, self._weights = points.y.double().numpy(), weights
        self._curvature, self._pull = precision * factor.T @ factor, precision * factor.T @ mean

    def potential_and_gradient_of_array(self, positions: Array) -> tuple[Array, Array]:
        """U and its gradient at phi (count, size)."""
        value, slope = self._density_and_slope(positions @ self._design.T + self._offset, self._targets)
        prior_gradient = positions @ self._curvature + self._pull
        prior = 0.5 * np.einsum("ij,ij->i", positions, prior_gradient + self._pull)
        return prior - value @ self._weights, prior_gradient - slope @ self._weighted_design

    def potential_and_gradient(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        potential, gradient = self.potential_and_gradient_of_array(np.atleast_2d(phi.detach().numpy()))
        return torch.from_numpy(potential).reshape(phi.shape[:-1]), torch.from_numpy(gradient).reshape(phi.shape)
