"""Problems of rows: a smooth model, its full data, and coordinates in which step sizes have no units."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.source import PosteriorSource
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.solver import KnowsGaussian
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import GaussianFit, expected_log_joint


def row_problem(model: SmoothModel, data: FullData, source: PosteriorSource | None = None) -> Problem:
    """The problem of a smooth model and its full data.

    Without a ``source``, posterior samples are draws of the Gaussian nearest to the posterior, which are exact where it
    is one. Chains move in the coordinates of :func:`halfway_coordinates`.
    """
    source = source or GaussianFit(model, data)
    coordinates = halfway_coordinates(model, source) if isinstance(source, KnowsGaussian) else None
    return Problem(Energy(model, len(data)), source, lambda: data, coordinates=coordinates)


def halfway_coordinates(model: SmoothModel, source: KnowsGaussian) -> Callable[[Points], Gaussian]:
    """N(mu, P^-1) with mu the mean of q and P the average of q's precision and the coreset's curvature under q.

    In coordinates theta = mu + L phi, L L^T = P^-1, neither curvature exceeds two, so that Langevin steps of every size
    below one are stable.
    """

    def coordinates(points: Points) -> Gaussian:
        q = source.gaussian
        curvature = -expected_log_joint(model, q, points.detached()).hessian
        return Gaussian.from_precision(q.mean, 0.5 * (torch.cholesky_inverse(q.factor) + curvature))

    return coordinates
