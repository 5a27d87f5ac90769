"""Models whose posterior can be known: linear predictors, the Gaussian mean, and any model given as functions.

Beside the ``Model`` protocol (a log-likelihood per datum and a log-prior) each model here can average its weighted
log-likelihood l(theta) = sum_i w_i log p(y_i | x_i, theta) over a Gaussian q = N(mu, S), with two derivatives:

    value = E_q[l],   gradient = E_q[grad l],   hessian = E_q[grad^2 l]

A linear predictor eta_i = x_i . theta is N(x_i . mu, x_i^T S x_i) under q, so that these are one-dimensional integrals
(Gauss-Hermite quadrature). Other models use a rule of 2 size + 1 nodes that is exact for cubic polynomials and asks for
gradients alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian

PseudoTarget: TypeAlias = Literal["fixed", "real", "positive", "unit", "simplex"]
"""What the target of a synthetic point may become: it keeps a real point's, or any number, a positive one, one between
zero and one, or a vector of class probabilities."""

QUADRATURE_NODES = 12
NARROW_NODES = 3
NARROW_SPREAD = 0.01
"""Standard deviation of a predictor below which three nodes leave an error of its sixth power, that is rounding."""

Array: TypeAlias = NDArray[np.float64]


class Expectation(NamedTuple):
    """The average of a function of theta over a Gaussian, with its two derivatives."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor

    def __add__(self, other: Expectation) -> Expectation:  # type: ignore[override]
        return Expectation(self.value + other.value, self.gradient + other.gradient, self.hessian + other.hessian)


@runtime_checkable
class SmoothModel(Protocol):
    """A ``Model`` that can be averaged over a Gaussian; what every construction in this package needs."""

    @property
    def size(self) -> int: ...

    @property
    def pseudo_target(self) -> PseudoTarget: ...

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor: ...

    def log_prior(self, theta: Tensor) -> Tensor: ...

    def expected_log_likelihood(self, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        """E_q[sum_i w_i log p(y_i | x_i, theta)], differentiable in ``x``, ``y``, ``weights`` and q's mean."""
        ...

    def expected_log_prior(self, q: Gaussian) -> Expectation: ...


# --- priors and averages --------------------------------------------------------------------------


@dataclass(frozen=True)
class NormalPrior:
    """The prior N(0, prior_scale^2 I)."""

    prior_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.prior_scale > 0:
            raise InputError(f"The prior scale must be positive; got {self.prior_scale}.")

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1) / (2 * self.prior_scale**2)

    def log_prior_gradient(self, theta: Tensor) -> Tensor:
        return -theta / self.prior_scale**2

    def expected_log_prior(self, q: Gaussian) -> Expectation:
        precision = self.prior_scale**-2
        value = -0.5 * precision * (q.mean.square().sum() + q.covariance.diagonal().sum())
        return Expectation(value, -precision * q.mean, -precision * torch.eye(q.size, dtype=q.mean.dtype))


def average_over_nodes(function: Callable[[Tensor], Tensor], q: Gaussian) -> Expectation:
    """The average of any smooth function of theta (nodes, size) -> (nodes,) over q, by 2 size + 1 nodes.

    With theta_i^+- = mu +- sqrt(3) L e_i,
        E_q[f]       = f(mu) + sum_i [f(theta_i^+) + f(theta_i^-) - 2 f(mu)] / 6,  likewise for grad f,
        E_q[f''] L   = columns [grad f(theta_i^+) - grad f(theta_i^-)] / (2 sqrt(3)),
    the first exact for cubic f and the second a central difference as wide as q.
    """
    reach = math.sqrt(3.0)
    steps = reach * q.factor.detach().T
    nodes = torch.cat([q.mean[None], q.mean + steps, q.mean - steps])
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        nodes = nodes if nodes.requires_grad else nodes.detach().requires_grad_()
        values = function(nodes)
        (gradients,) = torch.autograd.grad(values.sum(), nodes, create_graph=create_graph)
    if not create_graph:
        values = values.detach()
    forward, backward = gradients[1 : q.size + 1], gradients[q.size + 1 :]
    value = values[0] + (values[1:] - values[0]).sum() / 6
    gradient = gradients[0] + (gradients[1:] - gradients[0]).sum(0) / 6
    rows = torch.linalg.solve_triangular(q.factor.detach().T, (forward - backward) / (2 * reach), upper=True)
    return Expectation(value, gradient, 0.5 * (rows + rows.T))


@lru_cache(maxsize=8)
def _hermite(nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights with sum_k weight_k f(node_k) = E[f(z)], z ~ N(0, 1)."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.as_tensor(points), torch.as_tensor(weights / math.sqrt(2 * math.pi))


# --- the Gaussian mean ----------------------------------------------------------------------------


@dataclass(frozen=True)
class GaussianMean(NormalPrior):
    """x_i ~ N(theta, covariance) with a known covariance; the targets y are not looked at."""

    covariance: Tensor | None = None
    dimension: int = 0
    """Needed only when ``covariance`` is left out, which means the identity."""
    pseudo_target: PseudoTarget = "fixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.covariance is None and self.dimension < 1:
            raise InputError("A Gaussian mean needs its covariance or, for the identity, its dimension.")
        if self.covariance is not None:
            torch.linalg.cholesky(self.covariance)

    @property
    def size(self) -> int:
        return self.dimension if self.covariance is None else len(self.covariance)

    @cached_property
    def precision(self) -> Tensor:
        if self.covariance is None:
            return torch.eye(self.size, dtype=torch.float64)
        return torch.linalg.inv(self.covariance.double())

    def _scaled(self, vectors: Tensor) -> Tensor:
        """precision @ v for each row v."""
        return vectors if self.covariance is None else vectors @ self.precision.to(vectors.dtype)

    @cached_property
    def _log_normaliser(self) -> float:
        return 0.5 * (self.size * math.log(2 * math.pi) - float(torch.logdet(self.precision)))

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        scaled = self._scaled(theta)
        distance = (self._scaled(x) * x).sum(-1) + (scaled * theta).sum(-1)[..., None] - 2 * scaled @ x.T
        return -0.5 * distance - self._log_normaliser

    def log_likelihood_and_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """sum_i w_i log p(x_i | theta) and its gradient in theta, for one or many theta, in closed form."""
        total, weighted = weights.sum(), weights @ x
        constant = weights @ (self._scaled(x) * x).sum(-1)
        scaled = self._scaled(theta)
        distance = constant + total * (scaled * theta).sum(-1) - 2 * scaled @ weighted
        return -0.5 * distance - total * self._log_normaliser, self._scaled(weighted - total * theta)

    def expected_log_likelihood(self, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        precision = self.precision.to(x.dtype)
        hessian = -weights.sum() * precision
        value, gradient = self.log_likelihood_and_gradient(q.mean, x, y, weights)
        value = value + 0.5 * (hessian * q.covariance).sum()
        return Expectation(value, gradient, hessian)


# --- linear predictors ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Features:
    features: int


@dataclass(frozen=True)
class LinearPredictorModel(NormalPrior, _Features, ABC):
    """p(y | x, theta) = p(y | eta), eta = x . theta; an intercept is a column of ones in ``x``."""

    @property
    def size(self) -> int:
        return self.features

    @property
    @abstractmethod
    def pseudo_target(self) -> PseudoTarget: ...

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
        """E_q of the first and second derivative of log p(y_i | eta_i) in eta_i, one value a datum."""
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
        nodes, weights = _hermite(NARROW_NODES if narrow else QUADRATURE_NODES)
        return (x @ q.mean)[:, None] + spread[:, None] * nodes.to(x.dtype), weights.to(x.dtype)


@dataclass(frozen=True)
class LinearRegression(LinearPredictorModel):
    """y ~ N(x . theta, noise_scale^2)."""

    noise_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise_scale > 0:
            raise InputError(f"The noise scale must be positive; got {self.noise_scale}.")

    @property
    def pseudo_target(self) -> PseudoTarget:
        return "real"

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

    @property
    def pseudo_target(self) -> PseudoTarget:
        return "unit"

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

    @property
    def pseudo_target(self) -> PseudoTarget:
        return "positive"

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        return y * eta - eta.exp() - torch.lgamma(y + 1)

    def slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rate = eta.exp()
        return y - rate, -rate

    def density_and_slope(self, eta: Array, y: Array) -> tuple[Array, Array]:
        rate = np.exp(eta)
        return y * eta - rate, y - rate


# --- models without a one-dimensional predictor ---------------------------------------------------


@dataclass(frozen=True)
class _Classes:
    features: int
    classes: int


@dataclass(frozen=True)
class SoftmaxRegression(NormalPrior, _Classes):
    """P(y = c | x) = softmax(W x)_c with theta = W (classes, features) flattened; y a class or class probabilities."""

    pseudo_target: PseudoTarget = "simplex"

    @property
    def size(self) -> int:
        return self.features * self.classes

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

    def expected_log_likelihood(self, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        return average_over_nodes(lambda theta: self.log_likelihood(theta, x, y) @ weights, q)


@dataclass(frozen=True)
class FunctionModel:
    """A model of the user's own, as two PyTorch functions.

    ``log_likelihood_function(theta, x, y)`` gives log p(y_i | x_i, theta) for every datum, (m,), and
    ``log_prior_function(theta)`` the log-prior, (), both for one parameter vector theta (size,); populations are
    handled here.
    """

    log_likelihood_function: Callable[[Tensor, Tensor, Tensor], Tensor]
    log_prior_function: Callable[[Tensor], Tensor]
    size: int
    pseudo_target: PseudoTarget = "fixed"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"A model needs at least one parameter; got size {self.size}.")

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if theta.ndim == 1:
            values = self.log_likelihood_function(theta, x, y)
            if values.shape != (len(x),):
                raise InputError(
                    f"log_likelihood must give one value a datum, shape ({len(x)},); got {tuple(values.shape)}."
                )
            return values
        return torch.func.vmap(lambda one: self.log_likelihood(one, x, y))(theta)

    def log_prior(self, theta: Tensor) -> Tensor:
        if theta.ndim == 1:
            value = self.log_prior_function(theta)
            if value.ndim:
                raise InputError(f"log_prior must give one number; got shape {tuple(value.shape)}.")
            return value
        return torch.func.vmap(self.log_prior)(theta)

    def expected_log_likelihood(self, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        return average_over_nodes(lambda theta: self.log_likelihood(theta, x, y) @ weights, q)

    def expected_log_prior(self, q: Gaussian) -> Expectation:
        return average_over_nodes(self.log_prior, q)
