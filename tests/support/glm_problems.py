"""Random generalised linear models that are hard in one way or another, and their divergences measured afresh."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import all_points
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.glm import LinearRegression, LogisticRegression, PoissonRegression
from pseudocoresets.sources.gaussian_fit import GaussianFit, fit_gaussian

FAMILIES = ("linear", "logistic", "poisson")
TRAITS = ("plain", "separable", "imbalanced", "collinear", "heavy-tailed", "large counts")
DRAWS, DEGREES, FEWEST_WORTH = 8000, 5, 100


@dataclass(frozen=True)
class GlmProblem:
    """A model, its data, and a way to measure coresets that shares nothing with the library's own check."""

    model: SmoothModel
    rows: Rows
    fit: GaussianFit

    def divergence(self, points: Points) -> tuple[float, float]:
        """KL(full || coreset) by importance sampling with independent draws, and its standard error.

        E_pi[l - l_u] + log Z_u - log Z where the posteriors are apart, and with log E_pi[exp(l_u - l)] for the last two
        terms where they overlap; in closed form for a linear model. No divergence is negative: an estimate that is has
        at least that error. The error is infinite where too few of the draws count, as of twenty counts and as many
        parameters.
        """
        try:
            near = fit_gaussian(self.model, points)
        except DivergenceError:
            return math.inf, 0.0
        if self.model.has_gaussian_posterior:
            return float(kl_divergence(self.fit.gaussian, near)), 1e-6
        full = all_points(self.rows)
        theta, weights, evidence = _weighted(self.model, self.fit.gaussian, full, 1)
        theta, weights = theta[weights > 0], weights[weights > 0]
        gap = _likelihood(self.model, theta, full) - _likelihood(self.model, theta, points)
        mean = weights @ gap
        onward = torch.exp(weights.log() + mean - gap)
        if _worth(onward / onward.sum()) > 0.2 * DRAWS:
            value = float(torch.log(onward.sum()))
            return value, math.sqrt(2 / DRAWS) * 3 * value + 1e-6
        _, own_weights, own_evidence = _weighted(self.model, near, points, 2)
        spread = float((weights @ (gap - mean).square()) / _worth(weights)) ** 0.5
        value = float(mean) + own_evidence - evidence
        if min(_worth(weights), _worth(own_weights)) < FEWEST_WORTH:
            return value, math.inf
        return value, max(spread + 1 / _worth(own_weights) ** 0.5, -value)


def glm_problem(family: str, trait: str, n: int, d: int, seed: int) -> GlmProblem:
    """n data of d parameters, the last of them an intercept where there is more than one."""
    stream = np.random.default_rng(seed)
    x = stream.standard_normal((n, d))
    if trait == "heavy-tailed":
        x = stream.standard_t(2.5, (n, d))
    if trait == "collinear" and d > 2:
        x[:, d // 2 :] = x[:, : d - d // 2] + 0.01 * x[:, d // 2 :]
    if d > 1:
        x[:, -1] = 1.0
    theta = stream.standard_normal(d) / math.sqrt(d)
    if trait == "imbalanced":
        theta[-1] = -3.5
    eta = np.clip(x @ theta, -20, 20)
    if family == "linear":
        return _made(LinearRegression(d), x, eta + stream.standard_normal(n))
    if family == "logistic":
        sharpness = 12.0 if trait == "separable" else 1.0
        return _made(LogisticRegression(d, 5.0), x, stream.random(n) < 1 / (1 + np.exp(-sharpness * eta)))
    shift = 5.0 if trait == "large counts" else 0.0
    return _made(PoissonRegression(d, 5.0), x, stream.poisson(np.exp(np.clip(0.5 * eta + shift, -10, 8))))


def _made(model: SmoothModel, x: np.ndarray, y: np.ndarray) -> GlmProblem:
    rows = Rows(torch.from_numpy(x), torch.from_numpy(y.astype(float)))
    return GlmProblem(model, rows, GaussianFit(model, rows))


def _weighted(model: SmoothModel, near: Gaussian, points: Points, stream: int) -> tuple[Tensor, Tensor, float]:
    """Draws of a posterior, weights and log-evidence.

    Two thirds are of Student's t distribution, whose tails cover its own, and a third of the prior, which is nearer to
    the posterior of few points where their likelihoods cut off half-spaces.
    """
    generator, size = generator_for(stream, "afresh"), near.size
    normal = torch.randn(DRAWS, size + DEGREES, generator=generator, dtype=torch.float64)
    spread = (normal[:, size:].square().sum(1) / DEGREES).rsqrt()
    wide = Gaussian(near.mean, 1.2 * near.covariance)
    prior = Gaussian(torch.zeros_like(near.mean), model.prior_scale**2 * torch.eye(size, dtype=torch.float64))
    of_prior = torch.arange(DRAWS) % 3 == 0
    near_draws = wide.unwhitened(normal[:, :size] * spread[:, None])
    theta = torch.where(of_prior[:, None], prior.unwhitened(normal[:, :size]), near_draws)
    constant = math.lgamma((DEGREES + size) / 2) - math.lgamma(DEGREES / 2) - 0.5 * size * math.log(DEGREES * math.pi)
    distance = wide.whitened(theta).square().sum(1)
    log_t = constant - float(wide.factor.diagonal().log().sum())
    log_t = log_t - 0.5 * (DEGREES + size) * torch.log1p(distance / DEGREES)
    log_density = torch.logaddexp(log_t + math.log(2 / 3), prior.log_density(theta) - math.log(3))
    ratios = _likelihood(model, theta, points) + model.log_prior(theta) - log_density
    return theta, ratios.softmax(0), float(torch.logsumexp(ratios, 0)) - math.log(DRAWS)


def _likelihood(model: SmoothModel, theta: Tensor, points: Points) -> Tensor:
    return torch.cat([model.log_likelihood(part, points.x, points.y) @ points.weights for part in theta.split(500)])


def _worth(weights: Tensor) -> float:
    return float(1 / weights.square().sum())
