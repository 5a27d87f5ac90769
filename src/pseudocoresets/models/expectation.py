"""Averages of a log-likelihood over a Gaussian: what every construction from curvature needs of a model.

Beside the ``Model`` protocol (a log-likelihood per datum and a log-prior) a smooth model can average its weighted
log-likelihood l(theta) = sum_i w_i log p(y_i | x_i, theta) over a Gaussian q = N(mu, S), with two derivatives:

    value = E_q[l],   gradient = E_q[grad l],   hessian = E_q[grad^2 l]

A linear predictor eta_i = x_i . theta is N(x_i . mu, x_i^T S x_i) under q, so that these are one-dimensional integrals
in closed form. Other models use a rule of 2 size + 1 nodes that is exact for cubic polynomials and asks for
gradients alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.energy import Model
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.parameterisation import TargetRange
from pseudocoresets.core.points import FullData, LargeData, Points

MOST_PARAMETERS = 2001
"""Up to which the covariance of a posterior is worth having: 2,000 features and an intercept."""


class Expectation(NamedTuple):
    """The average of a function of theta over a Gaussian, with its two derivatives."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor

    def __add__(self, other: Expectation) -> Expectation:  # type: ignore[override]
        return Expectation(self.value + other.value, self.gradient + other.gradient, self.hessian + other.hessian)


@runtime_checkable
class SmoothModel(Model, Protocol):
    """A ``Model`` that can be averaged over a Gaussian."""

    @property
    def pseudo_target(self) -> TargetRange:
        """What the target of a synthetic point may become."""
        ...

    @property
    def classes(self) -> int:
        """How many classes the targets name; 0 where they are no classes."""
        ...

    @property
    def has_gaussian_posterior(self) -> bool:
        """Whether every posterior of the model is a Gaussian: its log-joint is quadratic in theta."""
        ...

    def check_data(self, x: Tensor, y: Tensor) -> None:
        """Refuse points that the model cannot have produced, with a sentence."""
        ...

    def expected_log_likelihood(self, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        """E_q[sum_i w_i log p(y_i | x_i, theta)], differentiable in ``x``, ``y``, ``weights`` and q's mean."""
        ...

    def expected_log_prior(self, q: Gaussian) -> Expectation: ...


def check_data(model: SmoothModel, data: FullData | Points) -> None:
    """Refuse data that the model cannot have produced; one pass, or none over those that were checked as they came.

    Neither are points of coresets, whose targets may be soft.
    """
    if model.size > MOST_PARAMETERS:
        raise InputError(
            f"The model has {model.size:,} parameters; a posterior of at most {MOST_PARAMETERS:,} is measured here, so "
            "leave some features out."
        )
    for x, y in [] if isinstance(data, LargeData | Points) else data.batches():
        model.check_data(x, y)


def require_features(x: Tensor, features: int) -> None:
    """Refuse points of another width than the model's."""
    if x.shape[1] != features:
        raise InputError(f"The model has {features} features and the points {x.shape[1]}; an intercept counts.")


def average_over_nodes(function: Callable[[Tensor], Tensor], q: Gaussian) -> Expectation:
    """The average of any smooth function of theta (nodes, size) -> (nodes,) over q, by 2 size + 1 nodes.

    With theta_i^+- = mu +- sqrt(3) L e_i,
        E_q[f]       = f(mu) + sum_i [f(theta_i^+) + f(theta_i^-) - 2 f(mu)] / 6,  likewise for grad f,
        E_q[f''] L   = columns [grad f(theta_i^+) - grad f(theta_i^-)] / (2 sqrt(3)),
    the first exact for cubic f and the second a central difference as wide as q.
    """
    radius = math.sqrt(3.0)
    steps = radius * q.factor.detach().T
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
    rows = torch.linalg.solve_triangular(q.factor.detach().T, (forward - backward) / (2 * radius), upper=True)
    return Expectation(value, gradient, 0.5 * (rows + rows.T))


class AveragedOverNodes:
    """A model whose averages over a Gaussian are those of :func:`average_over_nodes`; no posterior is a Gaussian."""

    has_gaussian_posterior: ClassVar[bool] = False

    def expected_log_likelihood(self: Model, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        return average_over_nodes(lambda theta: self.log_likelihood(theta, x, y) @ weights, q)

    def expected_log_prior(self: Model, q: Gaussian) -> Expectation:
        return average_over_nodes(self.log_prior, q)


class UncheckedModel(AveragedOverNodes):
    """A model given as functions, which know themselves what they take."""

    def check_data(self, x: Tensor, y: Tensor) -> None:
        """Nothing is refused here."""


@lru_cache(maxsize=8)
def hermite(nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights with sum_k weight_k f(node_k) = E[f(z)], z ~ N(0, 1)."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.as_tensor(points), torch.as_tensor(weights / math.sqrt(2 * math.pi))
