"""Samples of a coreset's posterior under a model that is no network."""

from __future__ import annotations

import time

import torch

from pseudocoresets.core.energy import Model
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Points
from pseudocoresets.core.progress import Progress
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import posterior_target
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.kernels import AnyKernel, build_kernel, sample_chains
from pseudocoresets.kernels.diagnostics import bulk_ess, rank_r_hat
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.functions import as_smooth
from pseudocoresets.sources.gaussian_fit import fit_gaussian
from pseudocoresets.sources.reference import sample_points

WHITENED_STEP_SIZE = 0.1
"""The step size of a kernel that is named without one: curvatures are near one."""
LARGEST_WHITENED = 2000
"""Parameters of a model up to which the Gaussian nearest to its posterior is looked for."""
ENOUGH_WEIGHT = 10
"""Importance sampling is trusted while its effective sample size is above a tenth of the draws."""


def sample_model_posterior(
    points: Points,
    model: Model,
    sampler: str | AnyKernel = "nuts",
    chains: int = 4,
    *,
    samples: int = 1000,
    warmup: int = 300,
    thin: int = 1,
    step_size: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> PosteriorSamples:
    """Draws of the posterior of weighted points, by NUTS or any other kernel.

    Where the model is smooth, or small enough to be made so, the kernel moves in coordinates whitened by the Gaussian
    nearest to that posterior and starts from points twice as wide; of several modes that chains do not pass between,
    each is sampled by itself and weighs what it holds. Elsewhere it moves in the model's own, from N(0, I).

    Args:
        samples: Draws of each chain.
        thin: Steps per draw, of kernels other than NUTS.
        step_size: For a kernel that is given by name; those that accept or reject adapt it.
    """
    if model.size <= LARGEST_WHITENED:
        model = as_smooth(model)
    kernel = build_kernel(sampler, step_size or WHITENED_STEP_SIZE)
    steps = samples * thin + warmup
    settings = SamplingSettings(
        sampler if isinstance(sampler, str) else type(kernel).__name__.lower(),
        chains,
        steps,
        samples,
        warmup / steps,
        kernel.step_size,
        augment=False,
        seed=seed,
    )
    if isinstance(model, SmoothModel):
        run = sample_points(model, points, kernel, samples, warmup, chains, seed, thin, progress)
        exact = run.gaussian if run.exact else None
        return PosteriorSamples(
            run.parameters, model, "model", settings, run.seconds, run.r_hat, run.ess, run.divergences, exact
        )
    starts = torch.randn(chains, model.size, generator=generator_for(seed, "starts"), dtype=points.x.dtype)
    began = time.perf_counter()
    found = sample_chains(kernel, posterior_target(model, points), starts, samples, warmup, seed, thin, progress)
    seconds = time.perf_counter() - began
    r_hat, ess = float(rank_r_hat(found.samples).max()), float(bulk_ess(found.samples).min())
    divergences = int(found.divergences.sum())
    return PosteriorSamples(found.samples, model, "model", settings, seconds, r_hat, ess, divergences)


def gaussian_moments(
    points: Points, model: SmoothModel, draws: int = 20000, seed: int = 0, samples: int = 1000, warmup: int = 500
) -> tuple[Gaussian, str]:
    """Mean and covariance of the posterior of weighted points, with little noise, and how they were found.

    Importance sampling from the nearest Gaussian, which for a posterior that is nearly one beats any chain; where fewer
    than a tenth of the draws count, NUTS.
    """
    nearest = fit_gaussian(model, points)
    if model.has_gaussian_posterior:
        return nearest, "exact"
    wide = Gaussian(nearest.mean, 1.1 * nearest.covariance)
    theta = wide.sample(draws, generator_for(seed, "importance sampling"))
    with torch.no_grad():
        joint = -torch.cat([posterior_target(model, points).potential(part) for part in theta.split(2000)])
    weights = torch.softmax(joint - wide.log_density(theta), 0)
    if float(weights.square().sum()) * draws < ENOUGH_WEIGHT:
        return Gaussian.fit(theta, weights), "importance sampling"
    return sample_model_posterior(points, model, samples=samples, warmup=warmup, seed=seed).gaussian, "nuts"
