"""Generalised linear models: linear, logistic, Poisson and softmax regression."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

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

NARROW = ((0.01, 3), (0.5, 12))
"""Largest standard deviations of a predictor for which so many nodes of Gauss-Hermite quadrature average a logistic
function up to 1e-11."""
PROBIT_SHARES = (
    *(0.003246343272134, 0.051517477033972, 0.195077912673858, 0.315569823632818),
    *(0.274149576158423, 0.131076880695470, 0.027912418727972, 0.001449567805354),
)
PROBIT_SLOPES = (
    *(1.365340806296348, 1.059523971016916, 0.830791313765644, 0.650732166639391),
    *(0.508135425366489, 0.396313345166341, 0.308904252267995, 0.238212616409306),
)
"""1 / (1 + exp(-z)) = sum_k share_k Phi(slope_k z) up to 2.2e-9 (Monahan & Stefanski 1992)."""


class Averages(NamedTuple):
    """E of log p(y_i | eta_i) and of its first and second derivative in eta_i, for eta_i ~ N(mean_i, variance_i)."""

    value: Tensor
    first: Tensor
    second: Tensor


def log_bernoulli(eta: Tensor, y: Tensor) -> Tensor:
    """log p(y) for P(1) = 1 / (1 + exp(-eta))"""
    return y * eta + F.logsigmoid(-eta)


def log_poisson(eta: Tensor, y: Tensor) -> Tensor:
    """log p(y) for the rate exp(eta)"""
    return y * eta - eta.exp() - torch.lgamma(y + 1)


def as_probabilities(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Classes (m,) as probabilities (m, classes) of one and zero; probabilities as they are."""
    return F.one_hot(y.long(), classes).to(dtype) if y.ndim == 1 else y


def require_one_target(y: Tensor) -> None:
    """Refuse several targets per row."""
    if y.ndim != 1:
        raise InputError(f"The model takes one target per row; got targets of shape {tuple(y.shape)}.")


def require_labels(y: Tensor, whose: str) -> None:
    """Refuse what is not between 0 and 1."""
    if bool(((y < 0) | (y > 1)).any()):
        raise InputError(
            f"{whose} takes targets of 0 and 1 (or between); got {float(y.min()):g} to {float(y.max()):g}. "
            "Labels of -1 and +1 become (y + 1) / 2."
        )


def require_classes(y: Tensor, classes: int, whose: str, what: str = "classes") -> None:
    """Refuse what is neither a class 0, 1, ... nor a row of probabilities."""
    soft = y.ndim == 2
    if (soft and (y.shape[1] != classes or bool((y < 0).any()))) or (
        not soft and bool(((y < 0) | (y >= classes) | (y != y.round())).any())
    ):
        raise InputError(f"{whose} takes {what} 0 to {classes - 1} or {classes} probabilities per row.")


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
        require_one_target(y)

    @abstractmethod
    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        """log p(y | eta), element by element."""

    @abstractmethod
    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        """The derivative of ``log_density`` in eta."""

    @abstractmethod
    def averages(self, mean: Tensor, variance: Tensor, y: Tensor) -> Averages:
        """Of predictors that are Gaussian."""

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

    def expected_slopes(
        self, q: Gaussian, x: Tensor, y: Tensor, whitened: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """E_q of the first and second derivative of log p(y_i | eta_i) in eta_i, one value per datum.

        ``whitened`` is x L, where that is known already.
        """
        found = self._averages(q, x, y, whitened)
        return found.first, found.second

    def expected_log_likelihood(self, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        value, first, second = self._averages(q, x, y)
        return Expectation(weights @ value, (weights * first) @ x, x.T @ ((weights * second)[:, None] * x))

    def _averages(self, q: Gaussian, x: Tensor, y: Tensor, whitened: Tensor | None = None) -> Averages:
        whitened = x @ q.factor.detach() if whitened is None else whitened
        return self.averages(x @ q.mean, whitened.square().sum(-1), y)


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

    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        return self.noise_scale**-2 * (y - eta)

    def averages(self, mean: Tensor, variance: Tensor, y: Tensor) -> Averages:
        precision = self.noise_scale**-2
        value = self.log_density(mean, y) - 0.5 * precision * variance
        return Averages(value, self.slope(mean, y), torch.full_like(mean, -precision))

    def density_and_slope(self, eta: Array, y: Array) -> tuple[Array, Array]:
        residual = (y - eta) / self.noise_scale
        return -0.5 * residual * residual, residual / self.noise_scale


@dataclass(frozen=True)
class LogisticRegression(LinearPredictorModel):
    """P(y = 1 | x) = 1 / (1 + exp(-x . theta)); y is 0 or 1, or between for a soft label."""

    pseudo_target: ClassVar[TargetRange] = "unit"

    def check_data(self, x: Tensor, y: Tensor) -> None:
        super().check_data(x, y)
        require_labels(y, "Logistic regression")

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        return log_bernoulli(eta, y)

    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        return y - torch.sigmoid(eta)

    def averages(self, mean: Tensor, variance: Tensor, y: Tensor) -> Averages:
        """By quadrature where predictors are narrow, else in closed form through a mixture of probit functions.

        For the antiderivative of Phi(z / s), eta ~ N(m, v) and t^2 = s^2 + v:  E[eta Phi(eta / s) + s phi(eta / s)] =
        m Phi(m / t) + t phi(m / t), whose derivatives in m are Phi(m / t) and phi(m / t) / t.
        """
        for largest, count in NARROW:
            if bool((variance.detach() < largest**2).all()):
                return self._by_quadrature(mean, variance, y, count)
        shares, slopes = (torch.tensor(each, dtype=mean.dtype) for each in (PROBIT_SHARES, PROBIT_SLOPES))
        widths = (slopes**-2 + variance[:, None]).sqrt()
        scaled = mean[:, None] / widths
        below, density = torch.special.ndtr(scaled), torch.exp(-0.5 * scaled.square()) / math.sqrt(2 * math.pi)
        probability = below @ shares
        value = (y - probability) * mean - (widths * density) @ shares
        return Averages(value, y - probability, -(density / widths) @ shares)

    def _by_quadrature(self, mean: Tensor, variance: Tensor, y: Tensor, count: int) -> Averages:
        nodes, weights = (each.to(mean.dtype) for each in hermite(count))
        eta = mean[:, None] + (variance + 1e-300).sqrt()[:, None] * nodes
        probability = torch.sigmoid(eta)
        value, bend = self.log_density(eta, y[:, None]), probability * (probability - 1)
        return Averages(value @ weights, y - probability @ weights, bend @ weights)

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
        return log_poisson(eta, y)

    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        return y - eta.exp()

    def averages(self, mean: Tensor, variance: Tensor, y: Tensor) -> Averages:
        rate = (mean + 0.5 * variance).exp()
        return Averages(y * mean - rate - torch.lgamma(y + 1), y - rate, -rate)

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
        require_classes(y, self.classes, "Softmax regression")

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self._chosen(self._log_probabilities(theta, x), y)

    def log_likelihood_and_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """sum_i w_i log p(y_i | x_i, theta) and its gradient in theta, for one or many theta, in closed form.

        The gradient in the logits of one datum is y - (sum_c y_c) softmax(W x), with y as class probabilities.
        """
        log_probabilities = self._log_probabilities(theta, x)
        soft = as_probabilities(y, self.classes, x.dtype)
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
