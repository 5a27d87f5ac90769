"""The posterior of data too large for chains: the nearest Gaussian, and how far from the posterior it is.

NUTS would read the data thousands of times. With as many data a posterior is a Gaussian but for terms of the order of
1 / sqrt(n), and q, the one of largest ELBO, is found by a few passes. Since

    KL(q || pi) = log Z - ELBO(q)

one more pass, which finds log Z by importance sampling, says how good it is.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import LargeData, Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import full_log_likelihoods
from pseudocoresets.kernels.diagnostics import bulk_ess, rank_r_hat
from pseudocoresets.kernels.pareto import LARGEST_K, pareto_smoothed
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import GaussianFit, batch_expectation, expected_log_joint, fit_gaussian
from pseudocoresets.sources.reference import ReferenceRun
from pseudocoresets.sources.yardstick import normal_draws

CHECK_DRAWS = 128
LARGEST_GAP = 0.05
"""Nats from the posterior up to which the nearest Gaussian may stand for it."""


def large_fit(model: SmoothModel, data: LargeData) -> GaussianFit:
    """q, searched for from where it is for the rows that are in memory, each of which stands for n / m."""
    some = data.some
    weights = torch.full((len(some),), len(data) / len(some), dtype=some.x.dtype)
    start = None if model.has_gaussian_posterior else fit_gaussian(model, Points(some.x, some.y, weights))
    return GaussianFit(model, data, start)


class Agreement(NamedTuple):
    """How near q is to the posterior."""

    gap: float
    """log Z - ELBO(q) = KL(q || pi), in nats"""
    error: float
    """The standard error of log Z, if draws were independent; those here are more even."""
    k: float
    """Shape of the tail of the importance weights."""

    @property
    def trusted(self) -> bool:
        return abs(self.gap) < LARGEST_GAP + 2 * self.error and self.error < LARGEST_GAP and self.k < LARGEST_K

    def __str__(self) -> str:
        return f"log Z - ELBO {self.gap:.2g} ± {self.error:.1g} nats, Pareto k {self.k:.2f}"


def agreement(fit: GaussianFit, seed: int = 0) -> Agreement:
    """One pass; nothing has to be checked of a model whose posteriors are Gaussians."""
    model, q = fit.model, fit.gaussian
    if model.has_gaussian_posterior:
        return Agreement(0.0, 0.0, 0.0)
    theta = normal_draws(q, CHECK_DRAWS, seed)
    with torch.no_grad():
        ratios = full_log_likelihoods(model, theta, fit.data) + model.log_prior(theta) - q.log_density(theta)
        bound = expected_log_joint(model, q, fit.data).value + q.entropy
    log_evidence = torch.logsumexp(ratios, 0) - math.log(len(theta))
    relative = (ratios - log_evidence).exp()
    error = float(relative.std()) / math.sqrt(len(theta))
    return Agreement(float(log_evidence - bound), error, pareto_smoothed(ratios).k)


def gaussian_reference(
    fit: GaussianFit, data: LargeData, draws: int, chains: int, seed: int, by_draws: bool = False
) -> ReferenceRun:
    """Independent draws of q, if it is near enough; the time of one is that of a pass, the least that NUTS needs.

    ``by_draws`` describes it by their mean and covariance, which are as noisy as those of a coreset's draws, not by q.
    """
    found = agreement(fit)
    if not found.trusted:
        raise DivergenceError(
            f"The nearest Gaussian is too far from the posterior to stand for it ({found}), and chains would read the "
            "data thousands of times; use fewer rows, which fit in memory."
        )
    generator = generator_for(seed, "draws of the nearest Gaussian")
    parameters = fit.gaussian.sample(chains * draws, generator).unflatten(0, (chains, draws))
    return ReferenceRun(
        parameters,
        Gaussian.fit(parameters.flatten(0, 1)) if by_draws else fit.gaussian,
        fit.model.has_gaussian_posterior and not by_draws,
        float(rank_r_hat(parameters).max()),
        float(bulk_ess(parameters).min()),
        fit.seconds,
        data.summed(partial(batch_expectation, fit.model, fit.gaussian))[1],
        how=f"draws of the nearest Gaussian ({found})",
    )
