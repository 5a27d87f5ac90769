"""Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao & Gabry 2024): weights and how far to trust them.

For draws theta_s of a proposal g and a target p, the ratios r_s = p(theta_s) / g(theta_s) make averages over g into
averages over p, with a variance that their largest values decide. The M = min(S / 5, 3 sqrt(S)) largest are described
by a generalised Pareto distribution above the next one, of shape k,

    P(r > u + t) ~ (1 + k t / sigma)^(-1 / k)

and replaced by its quantiles at (i - 1/2) / M. Ratios have 1 / k finite moments: below k = 1/2 their variance is
finite, below 0.7 errors shrink at a useful rate, and above that no number of draws will do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.targets import Array

LARGEST_K = 0.7
"""Shape of the tail up to which importance weights are to be trusted."""
FEWEST_TAIL = 5
PRIOR_DRAWS, PRIOR_K = 10, 0.5
"""A weak prior on k: that many draws of a tail of that shape."""


class SmoothedWeights(NamedTuple):
    """Logarithms of weights that sum to one, and the shape k of their tail."""

    log_weights: Tensor
    k: float


def pareto_smoothed(log_ratios: Tensor) -> SmoothedWeights:
    """Weights of draws from the logarithms of their ratios r_s (draws,), each up to the same constant."""
    values = np.asarray(log_ratios.detach().double().cpu(), dtype=np.float64)
    values = values - values.max()
    if not np.isfinite(values).all():
        return SmoothedWeights(torch.from_numpy(np.full_like(values, -math.log(len(values)))), math.inf)
    tail = math.ceil(min(len(values) / 5, 3 * math.sqrt(len(values))))
    k = math.inf
    if tail >= FEWEST_TAIL:
        order = np.argsort(values)
        threshold = np.exp(values[order[-tail - 1]])
        exceedances = np.exp(values[order[-tail:]]) - threshold
        k, sigma = fit_pareto(exceedances)
        if math.isfinite(k):
            probabilities = (np.arange(tail) + 0.5) / tail
            values[order[-tail:]] = np.minimum(np.log(threshold + _quantiles(probabilities, k, sigma)), 0.0)
    weights = torch.from_numpy(values)
    return SmoothedWeights(weights - torch.logsumexp(weights, 0), k)


def fit_pareto(exceedances: Array) -> tuple[float, float]:
    """Shape k and scale sigma of a generalised Pareto distribution, by Zhang & Stephens' (2009) quasi-Bayes estimate.

    With b = -k / sigma, the profile likelihood of b is N (log(-b / k(b)) - k(b) - 1) for k(b) = mean log(1 - b x); b is
    averaged under it over a grid that the quartile of x sets. The shape is drawn a little towards 1/2. No spread at
    all, as of equal ratios, is a tail of shape minus infinity.
    """
    x = np.sort(exceedances)
    if x[-1] <= 1e-300 or x[-1] - x[0] <= 1e-14 * x[-1]:
        return -math.inf, 0.0
    count, points = len(x), 30 + int(math.sqrt(len(x)))
    quartile = max(x[int(count / 4 + 0.5) - 1], 1e-280)
    grid = 1 / x[-1] + (1 - np.sqrt(points / (np.arange(points) + 0.5))) / (3 * quartile)
    grid = grid[np.abs(grid) > 1e-300]
    shapes = np.log1p(-grid[:, None] * x).mean(1)
    profile = count * (np.log(-grid / shapes) - shapes - 1)
    chances = np.exp(profile - profile.max())
    b = float(grid @ chances / chances.sum())
    shape = float(np.log1p(-b * x).mean())
    sigma = -shape / b
    return (count * shape + PRIOR_DRAWS * PRIOR_K) / (count + PRIOR_DRAWS), sigma


def _quantiles(probabilities: Array, k: float, sigma: float) -> Array:
    quantiles: Array = (
        -sigma * np.log1p(-probabilities) if abs(k) < 1e-12 else sigma * np.expm1(-k * np.log1p(-probabilities)) / k
    )
    return quantiles


def effective_draws(weights: SmoothedWeights) -> float:
    """1 / sum_s w_s^2: how many independent draws of the target are worth as much."""
    return float(torch.exp(-torch.logsumexp(2 * weights.log_weights, 0)))
