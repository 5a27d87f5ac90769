"""Weights of real points: natural-gradient steps, and the weights of least forward KL divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.devices import one_blas_thread
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Points
from pseudocoresets.core.targets import all_points
from pseudocoresets.methods.lbfgs import Objective
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.selection.uniform import draw_indices
from pseudocoresets.methods.selection.vectors import LikelihoodVectors, likelihood_vectors
from pseudocoresets.methods.solver import Solver, nearest_gaussian, smooth_model
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import expected_log_joint, fit_gaussian

SMALLEST_NORM = 0.01
"""Points whose log-likelihood varies less than this share of the mean are no candidates: they would weigh too much."""


def non_negative_least_squares(gram: Tensor, product: Tensor, damping: float = 1e-12) -> Tensor:
    """argmin_{w >= 0} w^T G w / 2 - w^T b, through the Cholesky factor G = R^T R and |R w - R^-T b|^2."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import nnls

    scale = gram.diagonal().clamp_min(1e-300).rsqrt()
    scaled = (scale[:, None] * gram * scale).numpy()
    for attempt in range(8):
        try:
            factor = np.linalg.cholesky(scaled + damping * 10.0 ** (2 * attempt) * np.eye(len(scaled))).T
            break
        except np.linalg.LinAlgError:
            continue
    else:
        raise DivergenceError("The chosen points' likelihoods are not finite.")
    right = solve_triangular(factor, (scale * product).numpy(), trans="T", check_finite=False)
    if not (np.isfinite(factor).all() and np.isfinite(right).all()):  # which would end the process in nnls
        raise DivergenceError("The chosen points' likelihoods are not finite.")
    solution, _ = nnls(factor, right, maxiter=50 * len(scaled))
    return scale * torch.from_numpy(solution)


class WeightSearch:
    """Natural-gradient steps on the weights of chosen points, under the posterior of those points.

    The gradient of KL(pi_w || pi) is -Cov_w[f_i, f - f_w] and its natural-gradient step leads to
        v = argmin_{v >= 0} Var_w[f - f_v],   w <- (1 - t) w + t v,   t = 1, 1/2, 1/4, ... until the divergence falls,
    with pi_w by its nearest Gaussian, found anew after every step. Under a wide prior Poisson rates vary without bound;
    then q, the Gaussian nearest to the full posterior, takes the place of pi_w.
    """

    def __init__(self, problem: Problem, seed: int, indices: Tensor | None = None) -> None:
        self._problem, self._model, self._seed = problem, smooth_model(problem), seed
        every = all_points(problem.full_data())
        self._x, self._y, self._ones = every.x, every.y, every.weights
        self.indices = torch.zeros(0, dtype=torch.long) if indices is None else indices
        share = len(self._x) / max(len(self.indices), 1)
        self.weights = torch.full((len(self.indices),), share, dtype=torch.float64)
        self._gaussian, self._divergence = self._look(self.weights, None)

    def add(self, index: int) -> None:
        """One more point, with weight zero."""
        self.indices = torch.cat([self.indices, torch.tensor([index])])
        self.weights = torch.cat([self.weights, torch.zeros(1, dtype=torch.float64)])

    def most_correlated(self) -> int:
        """The point, not chosen yet, that correlates best with the residual."""
        vectors = self.vectors()
        residual = vectors.with_sum(self._ones)
        if len(self.indices):
            residual = residual - vectors.with_sum(self.weights, self.indices)
        norms = vectors.squared_norms.clamp_min(0).sqrt()
        scores = torch.where(norms > SMALLEST_NORM * norms.mean(), residual / norms, -torch.inf)
        return int(scores.index_fill(0, self.indices, -torch.inf).argmax())

    def refine(self, rounds: int) -> None:
        for _ in range(rounds):
            vectors = self.vectors()
            product = vectors.with_sum(self._ones)[self.indices]
            wanted = non_negative_least_squares(vectors.gram(self.indices, self.indices), product).clamp_max(
                len(self._x)
            )
            if not self.step(wanted):
                break

    def step(self, wanted: Tensor) -> bool:
        """Go towards ``wanted`` as far as lowers the divergence; says whether it fell by more than rounding."""
        for halvings in range(8):
            weights = self.weights + 0.5**halvings * (wanted - self.weights)
            gaussian, divergence = self._look(weights, self._gaussian)
            if divergence < self._divergence:
                gain = self._divergence - divergence
                self.weights, self._gaussian, self._divergence = weights, gaussian, divergence
                return gain > 1e-6
        return False

    def vectors(self) -> LikelihoodVectors:
        """All log-likelihoods as vectors under the coreset's posterior, or under q while that is too wide for them."""
        for gaussian in (self._gaussian, nearest_gaussian(self._problem)):
            found = likelihood_vectors(self._model, gaussian, self._x, self._y, seed=self._seed)
            if bool(torch.isfinite(found.squared_norms).all()):
                return found
        raise DivergenceError("Log-likelihoods vary without bound under this posterior; narrow the prior.")

    def coreset(self, drop: bool = True) -> Points:
        """The points with their weights; ``drop`` leaves out those that weigh nothing."""
        if drop:
            return chosen_points(self._problem, self.indices, self.weights)
        return Points(self._x[self.indices], self._y[self.indices], self.weights, indices=self.indices)

    def _look(self, weights: Tensor, start: Gaussian | None) -> tuple[Gaussian, float]:
        """The Gaussian nearest to pi_w, and KL(that || pi) up to a constant."""
        points = Points(self._x[self.indices], self._y[self.indices], weights)
        gaussian = coreset_gaussian(self._model, points, start)
        joint = expected_log_joint(self._model, gaussian, self._problem.full_data())
        return gaussian, -float(joint.value) - float(gaussian.entropy)


def forward_kl_weights(
    problem: Problem, points: Points, loss: Objective, iterations: int = 200, cap: float = math.inf
) -> Points:
    """The weights that minimise KL(q || pi_w), for the Gaussian q nearest to the full posterior.

    They stay between 0 and n, or where they start, and below ``cap`` times n / m. The divergence is convex in w, with
    the gradient E_{pi_w}[f_i] - E_q[f_i]; ``loss`` is a form of it. L-BFGS with bounds; the best point is kept.
    """
    from scipy.optimize import minimize

    scale = problem.energy.data_size / len(points)
    start = np.minimum((points.weights / scale).numpy(), cap)
    best = (math.inf, start)

    def value_and_gradient(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        weights = torch.from_numpy(vector * scale).requires_grad_()
        try:
            value = loss(replace(points, weights=weights))
        except DivergenceError:
            return 1e30, np.zeros_like(vector)
        (gradient,) = torch.autograd.grad(value, weights)
        best = min(best, (float(value.detach()), vector.copy()), key=lambda pair: pair[0])
        return float(value.detach()), gradient.numpy() * scale

    bounds = [(0.0, min(cap, max(float(len(points)), weight))) for weight in start]
    options = {"maxiter": iterations, "ftol": 1e-12}
    with one_blas_thread():
        minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    assert points.indices is not None
    return chosen_points(problem, points.indices, torch.from_numpy(best[1] * scale))


def coreset_gaussian(model: SmoothModel, points: Points, start: Gaussian | None) -> Gaussian:
    """The Gaussian nearest to a coreset's posterior, from a start that may turn out to be of no use."""
    with torch.no_grad():
        if start is not None:
            try:
                return fit_gaussian(model, points, start, steps=20, tolerance=1e-6)
            except DivergenceError:
                pass
        return fit_gaussian(model, points, steps=20, tolerance=1e-6)


@dataclass(frozen=True)
class QuasiNewton(Solver):
    """A uniform subsample whose weights follow quasi-Newton steps (Naik, Rousseau & Campbell 2022).

        w <- max(0, w + t (G + tau I)^-1 b),     G_ij = Cov_w[f_i, f_j],     b_i = Cov_w[f_i, f - f_w],

    with Cov_w under the coreset's posterior, tau a small share of the mean of G's diagonal, and t = 1, 1/2, ... until
    the divergence falls.
    """

    steps: int = 30
    damping: float = 1e-3

    name: ClassVar[str] = "quasi-newton"
    needs_source: ClassVar[bool] = False

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        search = WeightSearch(problem, seed, draw_indices(problem.energy.data_size, size, seed))
        ones = torch.ones(problem.energy.data_size, dtype=torch.float64)
        for _ in range(self.steps):
            vectors = search.vectors()
            gram = vectors.gram(search.indices, search.indices)
            slope = vectors.with_sum(ones)[search.indices] - gram @ search.weights
            damping = (self.damping * gram.diagonal().mean()).clamp_min(1e-300) * torch.eye(size, dtype=torch.float64)
            wanted = search.weights + torch.linalg.solve(gram + damping, slope)
            if not search.step(wanted.clamp_min(0)):
                break
        return search.coreset()


def chosen_points(problem: Problem, indices: Tensor, weights: Tensor) -> Points:
    """The data at these positions that weigh something, or the first of them."""
    kept = weights > 0
    if not bool(kept.any()):
        kept = torch.zeros_like(kept).index_fill(0, torch.tensor([0]), True)
        weights = torch.where(kept, torch.full_like(weights, problem.energy.data_size), weights)
    x, y = problem.full_data().rows(indices[kept])
    return Points(x, y, weights[kept], indices=indices[kept])
