"""The Gaussians that averages over another Gaussian imply: one step of the search for q_u, differentiable in u."""

from __future__ import annotations

import torch

from pseudocoresets.core.gaussian import Gaussian, cholesky, kl_divergence
from pseudocoresets.core.points import Points
from pseudocoresets.methods.lbfgs import Objective
from pseudocoresets.models.expectation import Expectation, SmoothModel


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
    """KL(q || g_u), g_u = :func:`coreset_near` q: what ``MomentMatching`` minimises, for a fiftieth of the work."""
    return lambda points: kl_divergence(q, coreset_near(model, points, q))
