"""Gaussian distributions: what posteriors are approximated and compared by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError


@dataclass(frozen=True)
class Gaussian:
    """N(mean, covariance), with mean (size,) and covariance (size, size)."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def from_precision(cls, mean: Tensor, precision: Tensor) -> Gaussian:
        """N(mean, precision^-1)."""
        return cls(mean, torch.cholesky_inverse(cholesky(precision, "A precision matrix")))

    @classmethod
    def fit(cls, samples: Tensor, weights: Tensor | None = None) -> Gaussian:
        """Mean and covariance of ``samples`` (draws, size), optionally with weights that sum to one."""
        if weights is None:
            return cls(samples.mean(0), torch.cov(samples.T).reshape(samples.shape[1], samples.shape[1]))
        mean = weights @ samples
        centred = samples - mean
        return cls(mean, centred.T @ (weights[:, None] * centred))

    @property
    def size(self) -> int:
        return len(self.mean)

    @cached_property
    def factor(self) -> Tensor:
        """The lower triangular L with covariance = L L^T."""
        return cholesky(self.covariance, "A covariance matrix")

    @property
    def entropy(self) -> Tensor:
        """(size / 2) log(2 pi e) + log det L"""
        return 0.5 * self.size * math.log(2 * math.pi * math.e) + self.factor.diagonal().log().sum()

    @property
    def standard_deviation(self) -> Tensor:
        return self.covariance.diagonal().sqrt()

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, size) independent draws."""
        return self.unwhitened(torch.randn(count, self.size, generator=generator, dtype=self.mean.dtype))

    def whitened(self, theta: Tensor) -> Tensor:
        """phi = L^-1 (theta - mean) for theta (count, size): coordinates in which this is N(0, I)."""
        return torch.linalg.solve_triangular(self.factor, (theta - self.mean).T, upper=False).T

    def unwhitened(self, phi: Tensor) -> Tensor:
        """theta = mean + L phi."""
        return self.mean + phi @ self.factor.T

    def log_density(self, theta: Tensor) -> Tensor:
        """theta (count, size) gives (count,)."""
        constant = 0.5 * self.size * math.log(2 * math.pi) + self.factor.diagonal().log().sum()
        return -0.5 * self.whitened(theta).square().sum(-1) - constant


def kl_divergence(first: Gaussian, second: Gaussian) -> Tensor:
    """KL(first || second) = (tr(S2^-1 S1) + (m2 - m1)^T S2^-1 (m2 - m1) - size + log det S2 / det S1) / 2"""
    ratio = torch.linalg.solve_triangular(second.factor, first.factor, upper=False)
    shift = torch.linalg.solve_triangular(second.factor, (second.mean - first.mean)[:, None], upper=False)
    log_ratio = second.factor.diagonal().log().sum() - first.factor.diagonal().log().sum()
    return 0.5 * (ratio.square().sum() + shift.square().sum() - first.size) + log_ratio


def squared_wasserstein(first: Gaussian, second: Gaussian) -> Tensor:
    """W2^2 = |m1 - m2|^2 + tr(S1 + S2 - 2 (S1^1/2 S2 S1^1/2)^1/2)

    The trace of the root is the sum of the singular values of L1^T L2.
    """
    cross = torch.linalg.svdvals(first.factor.T @ second.factor).sum()
    traces = first.covariance.diagonal().sum() + second.covariance.diagonal().sum()
    return (first.mean - second.mean).square().sum() + traces - 2 * cross


def cholesky(matrix: Tensor, what: str) -> Tensor:
    """The Cholesky factor, or an error that says what was not positive definite; rounding errors are forgiven."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed):
        ridge = 1e-13 * matrix.diagonal().abs().max() * torch.eye(len(matrix), dtype=matrix.dtype)
        factor, failed = torch.linalg.cholesky_ex(matrix + ridge)
    if bool(failed) or not bool(torch.isfinite(factor).all()):
        raise DivergenceError(
            f"{what} is not positive definite; use a proper prior, more points or a log-concave likelihood."
        )
    return factor
