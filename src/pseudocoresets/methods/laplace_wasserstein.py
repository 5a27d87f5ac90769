"""Wasserstein distance between Gaussians, by L-BFGS through the Laplace approximation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.gaussian import Gaussian, cholesky, squared_wasserstein
from pseudocoresets.core.points import Points
from pseudocoresets.methods.lbfgs import minimise, points_of
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.solver import Solver, nearest_gaussian, smooth_model
from pseudocoresets.methods.starts import sharpened, starting_points
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import find_mode


@dataclass(frozen=True)
class LaplaceWasserstein(Solver):
    """Minimise W2^2 between q and the Laplace approximation of pi_u, relative to the trace of q's covariance.

        L = W2^2(q, N(theta(u), H(u)^-1)) / tr(Cov_q)

    with H the curvature of U_u at the mode, which moves with u by the implicit function theorem,

        theta(u) = theta* - H^-1 grad U_u(theta*),

    the limit of differentiating through an infinitely long inner optimisation. What Gaussians cannot tell is left to
    :func:`sharpened`.
    """

    learn_weights: bool = False
    iterations: int = 500

    name: ClassVar[str] = "laplace-w2"
    synthetic: ClassVar[bool] = True

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        form = starting_points(problem, size, seed, self.learn_weights)
        model, full = smooth_model(problem), nearest_gaussian(problem)
        start = full.mean
        scale = full.covariance.diagonal().sum()

        def distance(now: Points) -> Tensor:
            nonlocal start
            laplace = differentiable_laplace(model, now, start)
            start = laplace.mean.detach()
            return squared_wasserstein(full, laplace) / scale

        free, _ = minimise(form, form.flattened(form.initial()), distance, self.iterations)
        return points_of(form, sharpened(problem, form, free))


def differentiable_laplace(model: SmoothModel, points: Points, start: Tensor) -> Gaussian:
    """The Laplace approximation of pi_u, with exact derivatives in u."""
    found = find_mode(model, points.detached(), start)
    data = points.x, points.y, points.weights
    with torch.enable_grad():
        still = Gaussian(found.mean, 1e-8 * found.covariance)
        gradient = model.expected_log_likelihood(still, *data).gradient + model.expected_log_prior(still).gradient
        moving = Gaussian(found.mean + found.covariance @ gradient, 1e-8 * found.covariance)
        bend = model.expected_log_likelihood(moving, *data).hessian + model.expected_log_prior(moving).hessian
        covariance = torch.cholesky_inverse(cholesky(-bend, "The coreset posterior's curvature"))
    return Gaussian(moving.mean, covariance)
