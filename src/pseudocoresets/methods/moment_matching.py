"""Moment matching: the forward KL divergence between Gaussians, minimised by L-BFGS.

Notation here and in the other solvers: q is the Gaussian nearest to the full posterior; u = (x~, y~, w) are the
synthetic points, targets and weights; U_u their potential, pi_u their posterior and q_u the Gaussian nearest to pi_u.
Targets are learnt where the model says what they may be (any number, a soft label, ...), weights where the method does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
from pseudocoresets.sources.gaussian_fit import fit_gaussian


@dataclass(frozen=True)
class MomentMatching(Solver):
    """Minimise KL(q || pi_u), whose gradient matches moments: E_q[grad_u U_u] - E_{pi_u}[grad_u U_u].

    With pi_u replaced by q_u in the second term this is the exact gradient of
        F(u) = E_q[U_u] - entropy(q) - (E_{q_u}[U_u] - entropy(q_u)) = KL(q || pi_u) - KL(q_u || pi_u) >= 0,
    because q_u minimises its own term. F vanishes only where q itself is the Gaussian nearest to pi_u.
    From there, draws of pi lead on to the least KL(pi || pi_u) itself (:func:`sharpened`).
    """

    learn_weights: bool = False
    iterations: int = 300
    restarts: int = 5

    name: ClassVar[str] = "moments"
    synthetic: ClassVar[bool] = True

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        form = starting_points(problem, size, seed, self.learn_weights)
        loss = ForwardKLLoss(smooth_model(problem), nearest_gaussian(problem))
        free = minimise_again(form, form.flattened(form.initial()), loss, self.iterations, self.restarts)
        return points_of(form, sharpened(problem, form, free))


class ForwardKLLoss:
    """F(u) of :class:`MomentMatching`."""

    def __init__(self, model: SmoothModel, full: Gaussian) -> None:
        self._model, self._full = model, full
        self._nearest = NearestGaussian(model)
        self._full_prior = model.expected_log_prior(full).value.detach()
        self.last = math.nan

    def __call__(self, points: Points) -> Tensor:
        nearest = self._nearest(points)
        data = points.x, points.y, points.weights
        near = self._model.expected_log_likelihood(nearest, *data).value
        far = self._model.expected_log_likelihood(self._full, *data).value
        constants = self._model.expected_log_prior(nearest).value.detach() - self._full_prior
        loss = near - far + constants + nearest.entropy - self._full.entropy
        self.last = float(loss.detach())
        if self.last < -1e-6 * (1 + abs(float(far.detach()))):
            raise DivergenceError("The search for the Gaussian nearest to the coreset posterior did not end.")
        return loss


class NearestGaussian:
    """q_u of changing points, searched from where it was last time."""

    def __init__(self, model: SmoothModel, start: Gaussian | None = None) -> None:
        self._model = model
        self._last = start

    def __call__(self, points: Points) -> Gaussian:
        still = points.detached()
        with torch.no_grad():
            try:
                q = fit_gaussian(self._model, still, self._last)
            except DivergenceError:
                q = fit_gaussian(self._model, still)
        self._last = q
        return q
