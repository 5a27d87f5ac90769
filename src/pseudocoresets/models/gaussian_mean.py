"""The mean of a Gaussian with a known covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.parameterisation import TargetRange
from pseudocoresets.models.expectation import Expectation, require_features
from pseudocoresets.models.prior import NormalPrior


@dataclass(frozen=True)
class GaussianMean(NormalPrior):
    """x_i ~ N(theta, covariance) with a known covariance; the targets y are not looked at."""

    prior_scale: float = 1.0
    covariance: Tensor | None = None
    dimension: int = 0
    """Needed only when ``covariance`` is left out, which means the identity."""
    pseudo_target: TargetRange = "fixed"

    classes: ClassVar[int] = 0
    has_gaussian_posterior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.covariance is None and self.dimension < 1:
            raise InputError("A Gaussian mean needs its covariance or, for the identity, its dimension.")
        if self.covariance is not None:
            torch.linalg.cholesky(self.covariance)

    @property
    def size(self) -> int:
        return self.dimension if self.covariance is None else len(self.covariance)

    def check_data(self, x: Tensor, y: Tensor) -> None:
        require_features(x, self.size)

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

    def likelihood_vectors(self, q: Gaussian, x: Tensor) -> Tensor:
        """Vectors f_i (n, size + 1), the rows, with f_i . f_j = Cov_q[log p(x_i | theta), log p(x_j | theta)], exactly.

        With q = N(mu, L L^T) and the precision P:  f_i = [(x_i - mu)^T P L, |L^T P L|_F / sqrt(2)].
        """
        factor = self._scaled(q.factor.T).T
        bend = 0.5 * (q.factor.T @ factor).square().sum()
        # One product and one sum: [(x - mean) factor, constant] without copies of x.
        matrix = x @ torch.cat([factor, torch.zeros_like(factor[:, :1])], 1)
        matrix += torch.cat([-q.mean @ factor, bend.sqrt()[None]])
        return matrix
