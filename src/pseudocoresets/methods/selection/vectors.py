"""Log-likelihood functions as vectors: the Hilbert space in which coresets of real points are chosen.

Datum i is the function f_i(theta) = log p(y_i | x_i, theta), and under a Gaussian q = N(mu, S)

    <f_i, f_j> = Cov_q[f_i, f_j] = g_i^T S g_j + tr(S H_i S H_j) / 2 + ...,   g = E_q[grad f],  H = E_q[grad^2 f]

For a linear predictor g_i = a_i x_i and H_i = b_i x_i x_i^T, so that with z_i = L^T x_i

    <f_i, f_j> = a_i a_j (z_i . z_j) + b_i b_j (z_i . z_j)^2 / 2

without any sampling; for the Gaussian mean the two terms are exact. Other models are projected on samples of q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.glm import LinearPredictorModel


@runtime_checkable
class VectorModel(Protocol):
    """A model whose log-likelihoods are vectors in closed form."""

    def likelihood_vectors(self, q: Gaussian, x: Tensor) -> Tensor:
        """(n, dimension) with rows f_i such that f_i . f_j = Cov_q[log p(y_i | x_i), log p(y_j | x_j)]."""
        ...


class LikelihoodVectors(Protocol):
    """n vectors known by their inner products."""

    @property
    def squared_norms(self) -> Tensor:
        """|f_i|^2, (n,)."""
        ...

    def with_sum(self, weights: Tensor, indices: Tensor | None = None) -> Tensor:
        """<f_i, sum_j w_j f_j> for every i, (n,); the sum is over ``indices``, or over all."""
        ...

    def column(self, index: int) -> Tensor:
        """<f_i, f_index> for every i, (n,)."""
        ...

    def gram(self, rows: Tensor, columns: Tensor) -> Tensor:
        """<f_i, f_j> for the given rows and columns."""
        ...


@dataclass(frozen=True)
class ExplicitVectors:
    """Vectors as the rows of a matrix (n, dimension)."""

    matrix: Tensor

    @property
    def squared_norms(self) -> Tensor:
        return self.matrix.square().sum(-1)

    def with_sum(self, weights: Tensor, indices: Tensor | None = None) -> Tensor:
        rows = self.matrix if indices is None else self.matrix[indices]
        return self.matrix @ (weights @ rows)

    def column(self, index: int) -> Tensor:
        return self.matrix @ self.matrix[index]

    def gram(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self.matrix[rows] @ self.matrix[columns].T


@dataclass(frozen=True)
class LinearPredictorVectors:
    """<f_i, f_j> = a_i a_j k_ij + b_i b_j k_ij^2 / 2 with k_ij = z_i . z_j."""

    slopes: Tensor
    bends: Tensor
    whitened: Tensor

    @property
    def squared_norms(self) -> Tensor:
        squares = self.whitened.square().sum(-1)
        return self.slopes.square() * squares + 0.5 * (self.bends * squares).square()

    def with_sum(self, weights: Tensor, indices: Tensor | None = None) -> Tensor:
        chosen = slice(None) if indices is None else indices
        z, a, b = self.whitened[chosen], weights * self.slopes[chosen], weights * self.bends[chosen]
        first = self.whitened @ (a @ z)
        second = ((self.whitened @ (z.T @ (b[:, None] * z))) * self.whitened).sum(-1)
        return self.slopes * first + 0.5 * self.bends * second

    def column(self, index: int) -> Tensor:
        kernel = self.whitened @ self.whitened[index]
        return (self.slopes[index] * self.slopes + 0.5 * self.bends[index] * self.bends * kernel) * kernel

    def gram(self, rows: Tensor, columns: Tensor) -> Tensor:
        kernel = self.whitened[rows] @ self.whitened[columns].T
        linear = self.slopes[rows, None] * self.slopes[columns] * kernel
        return linear + 0.5 * self.bends[rows, None] * self.bends[columns] * kernel.square()


def likelihood_vectors(
    model: SmoothModel, q: Gaussian, x: Tensor, y: Tensor, samples: int = 1000, seed: int = 0
) -> LikelihoodVectors:
    """The data's log-likelihoods as vectors under q; ``samples`` matters only where they must be sampled."""
    with torch.no_grad():
        if isinstance(model, LinearPredictorModel):
            slopes, bends = model.expected_slopes(q, x, y)
            return LinearPredictorVectors(slopes, bends, x @ q.factor)
        if isinstance(model, VectorModel):
            return ExplicitVectors(model.likelihood_vectors(q, x))
        theta = q.sample(samples, generator_for(seed, "likelihood vectors"))
        values = model.log_likelihood(theta, x, y)
        possible = values.isfinite().all(1)
        values = values if bool(possible.all()) else values[possible]
        if len(values) < 2:
            raise DivergenceError(
                "The log-likelihood is finite almost nowhere near its mode; let every parameter take any real value, "
                "such as log sigma instead of sigma."
            )
        return ExplicitVectors(((values - values.mean(0)) / (len(values) - 1) ** 0.5).T.contiguous())
