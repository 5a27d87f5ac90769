"""The Gaussians that averages over another Gaussian imply: one step of the search for q_u, differentiable in u."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pseudocoresets.core.gaussian import Gaussian, cholesky, kl_divergence
from pseudocoresets.core.points import Points
from pseudocoresets.methods.lbfgs import Objective
from pseudocoresets.models.expectation import Expectation, SmoothModel
from pseudocoresets.models.glm import LinearPredictorModel


def gaussian_near(centre: Gaussian, joint: Expectation) -> Gaussian:
    """The Gaussian that a log-joint averaged over N(mu, S) implies: precision P = -E[grad^2], mean mu + P^-1 E[grad].

    At q_u this is q_u itself; elsewhere it is one step of the search for it.
    """
    covariance = torch.cholesky_inverse(cholesky(-joint.hessian, "The curvature near a Gaussian"))
    return Gaussian(centre.mean + covariance @ joint.gradient, covariance)


def coreset_near(model: SmoothModel, points: Points, centre: Gaussian) -> Gaussian:
    """:func:`gaussian_near` of a coreset's posterior, differentiable in the points and without any inner search."""
    likelihood = model.expected_log_likelihood(centre, points.x, points.y, points.weights)
    return gaussian_near(centre, likelihood + model.expected_log_prior(centre))


def forward_kl_near(model: SmoothModel, q: Gaussian) -> Objective:
    """KL(q || g_u), g_u = :func:`coreset_near` q: what ``MomentMatching`` minimises, for a fiftieth of the work.

    With P and g the average curvature and gradient of the coreset's log-joint under q = N(mu, S), this is
    (tr(P S) - log det(P S) - size + g^T P^-1 g) / 2.
    """
    if isinstance(model, LinearPredictorModel):
        return PredictorsNear(model, q)
    return lambda points: kl_divergence(q, coreset_near(model, points, q))


class PredictorsNear:
    """:func:`forward_kl_near` of a linear predictor, without a matrix of parameters by parameters where points are few.

    P = 1 / s^2 + X^T D X with D = diag(-w_i E_q[f_i'']). In whitened coordinates, L^T P L, it is well conditioned near
    q; of fewer points than parameters only C = 1 + s^2 D^1/2 X X^T D^1/2 is needed:
    det P = det C / s^(2 size) and g^T P^-1 g = s^2 (|g|^2 - s^2 h^T C^-1 h), h = D^1/2 X g.
    """

    def __init__(self, model: LinearPredictorModel, q: Gaussian) -> None:
        self._model, self._q = model, q
        self._factor = q.factor.detach()
        self._prior = self._factor.T @ self._factor / model.prior_scale**2
        self._pull = q.mean / model.prior_scale**2

    def __call__(self, points: Points) -> Tensor:
        z = points.x @ self._factor
        first, second = self._model.expected_slopes(self._q, points.x, points.y, z)
        gradient = (points.weights * first) @ points.x - self._pull
        bends = -points.weights * second
        few = len(points) < self._q.size
        return (self._few if few else self._many)(points.x, z, gradient, bends)

    def _many(self, x: Tensor, z: Tensor, gradient: Tensor, bends: Tensor) -> Tensor:
        precision = self._prior + z.T @ (bends[:, None] * z)
        factor = cholesky(precision, "The curvature near a Gaussian")
        shift = torch.linalg.solve_triangular(factor, (self._factor.T @ gradient)[:, None], upper=False)
        trace, log_det = precision.diagonal().sum(), 2 * factor.diagonal().log().sum()
        return 0.5 * (trace - log_det - self._q.size + shift.square().sum())

    def _few(self, x: Tensor, z: Tensor, gradient: Tensor, bends: Tensor) -> Tensor:
        variance, size = self._model.prior_scale**2, self._q.size
        root = bends.clamp_min(0).sqrt()[:, None] * x
        matrix = torch.eye(len(x), dtype=x.dtype) + variance * root @ root.T
        factor = cholesky(matrix, "The curvature near a Gaussian")
        held = torch.linalg.solve_triangular(factor, (root @ gradient)[:, None], upper=False)
        trace = self._prior.diagonal().sum() + bends @ z.square().sum(-1)
        log_det = 2 * (factor.diagonal().log().sum() + self._factor.diagonal().log().sum())
        log_det = log_det - size * math.log(variance)
        shift = variance * (gradient.square().sum() - variance * held.square().sum())
        return 0.5 * (trace - log_det - size + shift)
