"""Moment matching: the forward KL divergence between Gaussians, minimised by L-BFGS.

Notation here and in the other solvers: q is the Gaussian nearest to the full posterior; u = (x~, y~, w) are the
synthetic points, targets and weights; U_u their potential, pi_u their posterior and q_u the Gaussian nearest to pi_u.
Targets are learnt where the model says what they may be (any number, a soft label, ...), weights where the method does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Points
from pseudocoresets.methods.lbfgs import minimise_again, points_of
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.solver import Solver, nearest_gaussian, smooth_model
from pseudocoresets.methods.starts import sharpened, starting_points
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.glm import LinearPredictorModel
from pseudocoresets.sources.gaussian_fit import fit_gaussian

LARGEST_WORK, FEWEST_ITERATIONS = 3_000_000_000, 20
"""Iterations of :class:`MomentMatching` times the third power of the unknowns of q_u, which is what each one costs:
of 500 parameters there are 24 at a time, of fewer than 215 as many as asked for."""


@dataclass(frozen=True)
class MomentMatching(Solver):
    """Minimise KL(q || pi_u), whose gradient matches moments: E_q[grad_u U_u] - E_{pi_u}[grad_u U_u].

    With pi_u replaced by q_u in the second term this is the exact gradient of

        F(u) = E_q[U_u] - entropy(q) - (E_{q_u}[U_u] - entropy(q_u))
             = KL(q || pi_u) - KL(q_u || pi_u) >= 0,

    because q_u minimises its own term. F vanishes only where q itself is the Gaussian nearest to pi_u.
    From there, draws of pi lead on to the least KL(pi || pi_u) itself (:func:`sharpened`).
    """

    learn_weights: bool = True
    iterations: int = 300
    restarts: int = 5

    name: ClassVar[str] = "moments"
    synthetic: ClassVar[bool] = True

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        form = starting_points(problem, size, seed, self.learn_weights)
        model = smooth_model(problem)
        loss, unknown = ForwardKLLoss(model, nearest_gaussian(problem)), min(size, model.size)
        iterations = min(self.iterations, max(FEWEST_ITERATIONS, LARGEST_WORK // unknown**3))
        free = minimise_again(form, form.flattened(form.initial()), loss, iterations, self.restarts)
        return points_of(form, sharpened(problem, form, free))


class ForwardKLLoss:
    """F(u) of :class:`MomentMatching`.

    Fewer points than coefficients of a linear predictor say nothing outside the span of their rows, where q_u is the
    prior; it is then searched for within.
    """

    def __init__(self, model: SmoothModel, full: Gaussian) -> None:
        self._model, self._full = model, full
        self._nearest = NearestGaussian()
        self._full_prior = model.expected_log_prior(full).value.detach()
        self.last = math.nan

    def __call__(self, points: Points) -> Tensor:
        own = self._own_bound(points)
        far = self._model.expected_log_likelihood(self._full, points.x, points.y, points.weights).value
        loss = own - far - self._full_prior - self._full.entropy
        self.last = float(loss.detach())
        if self.last < -1e-6 * (1 + abs(float(far.detach()))):
            raise DivergenceError("The search for the Gaussian nearest to the coreset posterior did not end.")
        return loss

    def _own_bound(self, points: Points) -> Tensor:
        """entropy(q_u) - E_{q_u}[U_u], differentiable in the points."""
        model, outside = self._model, 0.0
        if isinstance(model, LinearPredictorModel) and len(points) < model.features:
            basis = torch.linalg.qr(points.x.detach().T).Q
            outside = 0.5 * (model.features - len(points)) * math.log(2 * math.pi * model.prior_scale**2)
            model, points = replace(model, features=len(points)), replace(points, x=points.x @ basis)
            self._nearest.turn(basis, model.prior_scale)
        nearest = self._nearest(model, points)
        value = model.expected_log_likelihood(nearest, points.x, points.y, points.weights).value
        return value + model.expected_log_prior(nearest).value.detach() + nearest.entropy + outside


class NearestGaussian:
    """q_u of changing points, searched from where it was last time."""

    def __init__(self, start: Gaussian | None = None) -> None:
        self._last = start
        self._basis: Tensor | None = None

    def turn(self, basis: Tensor, prior_scale: float) -> None:
        """Look in the span of the orthonormal columns of ``basis``, outside of which q_u is N(0, prior_scale^2)."""
        if self._last is not None and self._basis is not None:
            turned, variance = basis.T @ self._basis, prior_scale**2 * torch.eye(basis.shape[1], dtype=basis.dtype)
            covariance = variance + turned @ (self._last.covariance - variance) @ turned.T
            self._last = Gaussian(turned @ self._last.mean, covariance)
        self._basis = basis

    def __call__(self, model: SmoothModel, points: Points) -> Gaussian:
        still = points.detached()
        with torch.no_grad():
            try:
                q = fit_gaussian(model, still, self._last)
            except DivergenceError:
                q = fit_gaussian(model, still)
        self._last = q
        return q
