"""Gaussian process regression on an interval, and its nearest relative of a pseudo-coreset: inducing points.

The squared exponential kernel k(x, x') = a^2 exp(-(x - x')^2 / (2 l^2)) is written by its ``functions`` first
eigenfunctions on [-L, L] (Solin & Sarkka 2020),

    f(x) = sum_j theta_j s_j phi_j(x),   phi_j(x) = sin(j pi (x + L) / 2L) / sqrt(L),   s_j^2 = S(j pi / 2L),
    S(w) = a^2 sqrt(2 pi) l exp(-l^2 w^2 / 2),

with theta ~ N(0, I) and y ~ N(f(x), noise^2): linear regression on features of x, whose posteriors are Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian, cholesky
from pseudocoresets.core.parameterisation import TargetRange
from pseudocoresets.models.expectation import Expectation, require_features
from pseudocoresets.models.glm import LinearRegression


@dataclass(frozen=True)
class GaussianProcess:
    """f ~ GP(0, k) for x in [-``bound``, ``bound``], one column; y ~ N(f(x), noise_scale^2).

    ``bound`` should be some lengthscales larger than the data reach, and ``functions`` at least 3 bound / lengthscale.
    """

    lengthscale: float = 1.0
    scale: float = 1.0
    noise_scale: float = 0.1
    bound: float = 5.0
    functions: int = 32

    pseudo_target: ClassVar[TargetRange] = "real"
    classes: ClassVar[int] = 0
    has_gaussian_posterior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not min(self.lengthscale, self.scale, self.noise_scale, self.bound) > 0 or self.functions < 1:
            raise InputError("A Gaussian process needs positive scales and bound, and at least one function.")

    @property
    def size(self) -> int:
        return self.functions

    def check_data(self, x: Tensor, y: Tensor) -> None:
        require_features(x, 1)
        if bool((x.abs() > self.bound).any()):
            raise InputError(f"The points must lie within {self.bound:g} of zero; give a larger bound.")

    def features(self, x: Tensor) -> Tensor:
        """(m, functions) values s_j phi_j(x)."""
        frequencies = torch.arange(1, self.functions + 1, dtype=x.dtype) * (math.pi / (2 * self.bound))
        density = self.scale**2 * math.sqrt(2 * math.pi) * self.lengthscale
        scales = (density * torch.exp(-0.5 * (self.lengthscale * frequencies).square()) / self.bound).sqrt()
        return scales * torch.sin(frequencies * (x + self.bound))

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self._linear.log_likelihood(theta, self.features(x), y)

    def log_likelihood_and_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._linear.log_likelihood_and_gradient(theta, self.features(x), y, weights)

    def expected_log_likelihood(self, q: Gaussian, x: Tensor, y: Tensor, weights: Tensor) -> Expectation:
        return self._linear.expected_log_likelihood(q, self.features(x), y, weights)

    def log_prior(self, theta: Tensor) -> Tensor:
        return self._linear.log_prior(theta)

    def log_prior_gradient(self, theta: Tensor) -> Tensor:
        return self._linear.log_prior_gradient(theta)

    def expected_log_prior(self, q: Gaussian) -> Expectation:
        return self._linear.expected_log_prior(q)

    @property
    def _linear(self) -> LinearRegression:
        return LinearRegression(self.functions, 1.0, self.noise_scale)

    def log_evidence(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y | x) = log N(y; 0, F F^T + noise^2), F the features."""
        return _log_marginal(self.features(x), y, self.noise_scale)

    def inducing(self, x: Tensor, y: Tensor, z: Tensor) -> InducingPoints:
        """The variational posterior p(f | f(z)) q(f(z)) with the best q (Titsias 2009).

        Given f(z), the data are seen through their mean f(x) = F P theta, P the projection on the features of ``z``:
            bound = log N(y; 0, F P F^T + noise^2) - tr(F (1 - P) F^T) / (2 noise^2),
        and log p(y | x) - bound is the divergence of that posterior from the full one.
        """
        basis = self.features(z)
        gram = basis @ basis.T
        jitter = 1e-10 * gram.diagonal().mean() * torch.eye(len(z), dtype=z.dtype)
        projector = torch.linalg.solve_triangular(
            cholesky(gram + jitter, "The inducing points' kernel"), basis, upper=False
        )
        features = self.features(x)
        seen = features @ projector.T
        missed = features.square().sum() - seen.square().sum()
        bound = _log_marginal(seen, y, self.noise_scale) - 0.5 * missed / self.noise_scale**2
        kept = seen @ projector
        precision = torch.eye(self.functions, dtype=x.dtype) + kept.T @ kept / self.noise_scale**2
        posterior = Gaussian.from_precision(torch.linalg.solve(precision, kept.T @ y) / self.noise_scale**2, precision)
        return InducingPoints(bound, posterior)


@dataclass(frozen=True)
class InducingPoints:
    """Titsias' bound on the log-evidence, and the variational posterior of theta."""

    bound: Tensor
    posterior: Gaussian


def _log_marginal(features: Tensor, y: Tensor, noise: float) -> Tensor:
    """log N(y; 0, F F^T + noise^2) by a matrix of features by features."""
    count, size = features.shape
    scaled = features / noise
    factor = cholesky(torch.eye(size, dtype=features.dtype) + scaled.T @ scaled, "The evidence's curvature")
    along = torch.linalg.solve_triangular(factor, (scaled.T @ y)[:, None] / noise, upper=False)
    quadratic = (y / noise).square().sum() - along.square().sum()
    return -0.5 * quadratic - factor.diagonal().log().sum() - count * math.log(noise * math.sqrt(2 * math.pi))
