"""Generalised linear models: linear, logistic, Poisson and softmax regression."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.parameterisation import TargetRange
from pseudocoresets.core.targets import Array
from pseudocoresets.models.expectation import (
    AveragedOverNodes,
    Expectation,
    hermite,
    require_features,
)
from pseudocoresets.models.prior import NormalPrior

QUADRATURE_NODES = 12
NARROW_NODES = 3
NARROW_SPREAD = 0.01
"""Standard deviation of a predictor below which three nodes leave an error of its sixth power, that is rounding."""


def require_counts(y: Tensor, whose: str) -> None:
    """Refuse what is below zero; a synthetic count may be any positive number."""
    if bool((y < 0).any()):
        raise InputError(f"{whose} takes counts (0, 1, 2, ...); got {float(y.min()):g}.")


@dataclass(frozen=True)
class LinearPredictorModel(NormalPrior, ABC):
    """p(y | x, theta) = p(y | eta), eta = x . theta; an intercept is a column of ones in ``x``."""

    features: int
    prior_scale: float = 1.0

    pseudo_target: ClassVar[TargetRange]
    classes: ClassVar[int] = 0
    has_gaussian_posterior: ClassVar[bool] = False

    @property
    def size(self) -> int:
        return self.features

    def check_data(self, x: Tensor, y: Tensor) -> None:
        require_features(x, self.features)

    @abstractmethod
    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        """log p(y | eta), element by element."""

    @abstractmethod
    def slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The first and second derivative of ``log_density`` in eta."""

    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        """The first derivative alone, for data so many that the second would cost."""
        return self.slopes(eta, y)[0]

    @abstractmethod
    def density_and_slope(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """log p(y | eta) up to a term in y alone, and its derivative, in NumPy, which is faster for few points."""

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.log_density(theta @ x.T, y)

    def log_likelihood_and_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """sum_i w_i log p(y_i | x_i, theta) and its gradient in theta, for one or many theta, in closed form."""
        eta = theta @ x.T
        return self.log_density(eta, y) @ weights, (self.slope(eta, y) * weights) @ x

    def expected_slopes(self, q: Gaussian, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """E_q of the first and second derivative of log p(y_i | eta_i) in eta_i, one value per datum."""
        eta, weights = self._predictor_nodes(q, x)
        first, second = self.slopes(eta, y[:, None])
        return first @ weights, second @ weights

    def expected_log_likelihood(self, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        eta, node_weights = self._predictor_nodes(q, x)
        values = self.log_density(eta, y[:, None]) @ node_weights
        first, second = self.slopes(eta, y[:, None])
        gradient = (weights * (first @ node_weights)) @ x
        hessian = x.T @ ((weights * (second @ node_weights))[:, None] * x)
        return Expectation(weights @ values, gradient, hessian)

    def _predictor_nodes(self, q: Gaussian, x: Tensor) -> tuple[Tensor, Tensor]:
        """(m, nodes) values of eta under q and the nodes' weights."""
        spread = ((x @ q.factor.detach()).square().sum(-1) + 1e-300).sqrt()
        narrow = bool((spread.detach() < NARROW_SPREAD).all())
        nodes, weights = hermite(NARROW_NODES if narrow else QUADRATURE_NODES)
        return (x @ q.mean)[:, None] + spread[:, None] * nodes.to(x.dtype), weights.to(x.dtype)


@dataclass(frozen=True)
class LinearRegression(LinearPredictorModel):
    """y ~ N(x . theta, noise_scale^2)."""

    noise_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise_scale > 0:
            raise InputError(f"The noise scale must be positive; got {self.noise_scale}.")

    pseudo_target: ClassVar[TargetRange] = "real"
    has_gaussian_posterior: ClassVar[bool] = True

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        return -0.5 * ((y - eta) / self.noise_scale).square() - math.log(self.noise_scale * math.sqrt(2 * math.pi))

    def slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        precision = self.noise_scale**-2
        return precision * (y - eta), torch.full_like(eta, -precision)

    def density_and_slope(self, eta: Array, y: Array) -> tuple[Array, Array]:
        residual = (y - eta) / self.noise_scale
        return -0.5 * residual * residual, residual / self.noise_scale


@dataclass(frozen=True)
class LogisticRegression(LinearPredictorModel):
    """P(y = 1 | x) = 1 / (1 + exp(-x . theta)); y is 0 or 1, or between for a soft label."""

    pseudo_target: ClassVar[TargetRange] = "unit"

    def check_data(self, x: Tensor, y: Tensor) -> None:
        super().check_data(x, y)
        if bool(((y < 0) | (y > 1)).any()):
            raise InputError(
                f"Logistic regression takes targets of 0 and 1 (or between); got {float(y.min()):g} to "
                f"{float(y.max()):g}. "
                "Labels of -1 and +1 become (y + 1) / 2."
            )

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        return y * eta + F.logsigmoid(-eta)

    def slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        probability = torch.sigmoid(eta)
        return y - probability, probability * (probability - 1)

    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        return y - torch.sigmoid(eta)

    def density_and_slope(self, eta: Array, y: Array) -> tuple[Array, Array]:
        return y * eta - np.logaddexp(0.0, eta), y - expit(eta)


@dataclass(frozen=True)
class PoissonRegression(LinearPredictorModel):
    """y ~ Poisson(exp(x . theta)); a synthetic y may be any positive number."""

    pseudo_target: ClassVar[TargetRange] = "positive"

    def check_data(self, x: Tensor, y: Tensor) -> None:
        super().check_data(x, y)
        require_counts(y, "Poisson regression")

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        return y * eta - eta.exp() - torch.lgamma(y + 1)

    def slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rate = eta.exp()
        return y - rate, -rate

    def density_and_slope(self, eta: Array, y: Array) -> tuple[Array, Array]:
        rate = np.exp(eta)
        return y * eta - rate, y - rate


@dataclass(frozen=True)
class SoftmaxRegression(NormalPrior, AveragedOverNodes):
    """P(y = c | x) = softmax(W x)_c with theta = W (classes, features) flattened; y: classes or class probabilities."""

    features: int
    classes: int
    prior_scale: float = 1.0

    pseudo_target: ClassVar[TargetRange] = "simplex"

    @property
    def size(self) -> int:
        return self.features * self.classes

    def check_data(self, x: Tensor, y: Tensor) -> None:
        require_features(x, self.features)
        soft = y.ndim == 2
        if (soft and (y.shape[1] != self.classes or bool((y < 0).any()))) or (
            not soft and bool(((y < 0) | (y >= self.classes) | (y != y.round())).any())
        ):
            raise InputError(
                f"Softmax regression takes classes 0 to {self.classes - 1} or {self.classes} probabilities per row."
            )

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self._chosen(self._log_probabilities(theta, x), y)

    def log_likelihood_and_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """sum_i w_i log p(y_i | x_i, theta) and its gradient in theta, for one or many theta, in closed form.

        The gradient in the logits of one datum is y - (sum_c y_c) softmax(W x), with y as class probabilities.
        """
        log_probabilities = self._log_probabilities(theta, x)
        soft = F.one_hot(y.long(), self.classes).to(x.dtype) if y.ndim == 1 else y
        residual = (soft - soft.sum(-1, keepdim=True) * log_probabilities.exp()) * weights[:, None]
        gradient = residual.transpose(-1, -2) @ x
        return self._chosen(log_probabilities, y) @ weights, gradient.reshape(theta.shape)

    def _log_probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        """log softmax(W x) of every class, (..., m, classes)."""
        matrix = theta.reshape(*theta.shape[:-1], self.classes, self.features)
        return F.log_softmax(x @ matrix.transpose(-1, -2), -1)

    def _chosen(self, log_probabilities: Tensor, y: Tensor) -> Tensor:
        """The log-probability of each datum's class, or its mean under class probabilities."""
        if y.ndim == 1:
            index = y.long()[:, None].expand(*log_probabilities.shape[:-1], 1)
            return log_probabilities.gather(-1, index).squeeze(-1)
        return (log_probabilities * y).sum(-1)
