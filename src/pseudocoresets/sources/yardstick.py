"""How far a coreset's posterior is from the full one, without a chain.

With l(theta) the log-likelihood of all the data, l_u that of a coreset u, and Delta = l - l_u, the prior cancels in

    KL(pi || pi_u) = E_pi[Delta] + log E_pi[exp(-Delta)]                                                      (near)
                   = E_pi[Delta] + log Z_u - log Z                                                            (far)

Draws of the Gaussian q nearest to pi, with Pareto-smoothed importance weights, stand for pi. The first line has a
small relative error where pi covers pi_u, because the noise of its two terms cancels; the second finds Z_u by draws of
the Gaussian q_u nearest to pi_u. Where the weights of these draws have a heavy tail, broader ones are tried: half of
Student's t distribution around the Gaussian and half of the prior, which a posterior of few points often is but for
some half-spaces. Where that does not help, where a divergence would be negative, and where there are too many data or
parameters, KL(q || q_u) has to do; where all posteriors are Gaussian it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import full_log_likelihoods, log_likelihoods
from pseudocoresets.kernels.pareto import LARGEST_K, pareto_smoothed
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import fit_gaussian, prior_gaussian

DRAWS = 1024
FEWEST_DRAWS = 256
LARGEST_WORK = 40_000_000
"""Log-likelihoods that are evaluated for a yardstick: draws times data."""
WIDER = 1.1
"""How much larger the covariance of a proposal is than that of the Gaussian nearest to its target."""
DEGREES = 5
"""Degrees of freedom of Student's t distribution, where a Gaussian's tails are too light."""
LARGEST_NEAR = 0.2
"""Nats up to which a divergence may be found by draws of pi alone."""
NEARLY_EQUAL = 0.9
"""E[r]^2 / E[r^2] above which weights r are so equal that the shape of their tail does not matter."""


class WeightedDraws(NamedTuple):
    """Draws that stand for the full posterior."""

    theta: Tensor
    log_likelihood: Tensor
    """l(theta) of each, (draws,)."""
    log_weights: Tensor
    """Logarithms of importance weights that sum to one."""
    log_evidence: Tensor
    """log Z"""
    k: float
    """The shape of the tail of the weights."""

    @property
    def trusted(self) -> bool:
        return self.k <= LARGEST_K


@dataclass(frozen=True)
class Yardstick:
    """Divergences of coresets from the posterior of ``data``, of which ``q`` is the nearest Gaussian."""

    model: SmoothModel
    data: FullData | Points
    q: Gaussian
    seed: int = 0
    most_draws: int = DRAWS

    @property
    def draws(self) -> int:
        """How many draws of q there are; none where the data are too many."""
        affordable = LARGEST_WORK // (2 * len(self.data))
        return 0 if affordable < FEWEST_DRAWS else min(self.most_draws, affordable)

    @cached_property
    def learning(self) -> WeightedDraws | None:
        """Draws that a search may use, where they can be trusted."""
        return self._drawn(0)

    @cached_property
    def judging(self) -> WeightedDraws | None:
        """Other draws, by which the result of a search is judged."""
        return self._drawn(1)

    def prepare(self) -> None:
        """Draw now what would be drawn when first needed."""
        _ = self.learning, self.judging

    def divergence(self, points: Points) -> float:
        """An estimate of KL(pi || pi_u) in nats; infinite where pi_u has no nearest Gaussian."""
        try:
            with torch.no_grad():
                value = self._divergence(points.detached())
        except DivergenceError:
            return math.inf
        return max(value, 0.0) if math.isfinite(value) else math.inf

    def near(self, points: Points, draws: WeightedDraws) -> Tensor:
        """E_pi[Delta] + log E_pi[exp(-Delta)] over these draws, differentiable in the points."""
        return _near(draws.log_weights, draws.log_likelihood - log_likelihoods(self.model, draws.theta, points))

    def _divergence(self, points: Points) -> float:
        draws = self.judging
        if draws is None:
            return float(kl_divergence(self.q, fit_gaussian(self.model, points)))
        gap = draws.log_likelihood - log_likelihoods(self.model, draws.theta, points)
        value = near_divergence(draws.log_weights, gap)
        if value is not None:
            return value
        nearest = fit_gaussian(self.model, points)
        own = self._weighted(
            nearest, lambda theta: log_likelihoods(self.model, theta, points), self.most_draws, self.seed
        )
        value = float(draws.log_weights.exp() @ gap + own.log_evidence - draws.log_evidence)
        return value if own.trusted and value > 0 else max(value, float(kl_divergence(self.q, nearest)))

    def _drawn(self, stream: int) -> WeightedDraws | None:
        if self.model.has_gaussian_posterior or not self.draws:
            return None
        likelihood = partial(full_log_likelihoods, self.model, data=self.data)
        found = self._weighted(self.q, likelihood, self.draws, 2 * self.seed + stream)
        return found if found.trusted else None

    @torch.no_grad()
    def _weighted(
        self, nearest: Gaussian, likelihood: Callable[[Tensor], Tensor], count: int, seed: int
    ) -> WeightedDraws:
        """Draws of the posterior with this likelihood, by way of its nearest Gaussian or, if need be, broader ones."""
        wide = _widened(nearest)
        found = self._by_ratios(normal_draws(wide, count, seed), wide.log_density, likelihood)
        if found.trusted:
            return found
        broad = Broad(nearest, prior_gaussian(self.model))
        return self._by_ratios(broad.draws(count, seed), broad.log_density, likelihood)

    def _by_ratios(
        self, theta: Tensor, log_density: Callable[[Tensor], Tensor], likelihood: Callable[[Tensor], Tensor]
    ) -> WeightedDraws:
        log_likelihood, count = likelihood(theta), len(theta)
        possible = torch.isfinite(log_likelihood)
        if bool(possible.any()):
            theta, log_likelihood = theta[possible], log_likelihood[possible]
        ratios = log_likelihood + self.model.log_prior(theta) - log_density(theta)
        weights = pareto_smoothed(ratios)
        log_evidence = torch.logsumexp(ratios, 0) - math.log(count)
        return WeightedDraws(theta, log_likelihood, weights.log_weights, log_evidence, weights.k)


@dataclass(frozen=True)
class Broad:
    """Student's t distribution around a Gaussian and, where it is known, the prior, half and half."""

    near: Gaussian
    prior: Gaussian | None

    def draws(self, count: int, seed: int) -> Tensor:
        """(count, size)"""
        generator, size, half = generator_for(seed, "broad"), self.near.size, count // 2
        normal = torch.randn(count, size + DEGREES, generator=generator, dtype=torch.float64)
        spread = (normal[:, size:].square().sum(1) / DEGREES).rsqrt()
        near = self.near.unwhitened(normal[:, :size] * spread[:, None])
        return near if self.prior is None else torch.cat([near[:half], self.prior.unwhitened(normal[half:, :size])])

    def log_density(self, theta: Tensor) -> Tensor:
        size, both = self.near.size, DEGREES + self.near.size
        constant = math.lgamma(both / 2) - math.lgamma(DEGREES / 2) - 0.5 * size * math.log(DEGREES * math.pi)
        scale = self.near.factor.diagonal().log().sum()
        squared = self.near.whitened(theta).square().sum(1)
        near = constant - scale - 0.5 * both * torch.log1p(squared / DEGREES)
        if self.prior is None:
            return near
        return torch.logaddexp(near, self.prior.log_density(theta)) - math.log(2)


def near_divergence(log_weights: Tensor, gap: Tensor) -> float | None:
    """KL(pi || pi_u) from ``gap`` = l - l_u at weighted draws of pi, where that can be trusted.

    It can where it is small and the weights r = exp(-gap) that lead on from pi to pi_u are nearly equal or have no
    heavy tail. (Draws of pi cannot see how much wider pi_u is, and then the fit of the tail does not see it either.)
    """
    value = float(_near(log_weights, gap))
    if not value <= LARGEST_NEAR:
        return None
    share = torch.exp(2 * torch.logsumexp(log_weights - gap, 0) - torch.logsumexp(log_weights - 2 * gap, 0))
    return value if float(share) > NEARLY_EQUAL or pareto_smoothed(log_weights - gap).k <= LARGEST_K else None


def _near(log_weights: Tensor, gap: Tensor) -> Tensor:
    return log_weights.exp() @ gap + torch.logsumexp(log_weights - gap, 0)


def _widened(gaussian: Gaussian) -> Gaussian:
    return Gaussian(gaussian.mean, WIDER * gaussian.covariance)


def normal_draws(gaussian: Gaussian, count: int, seed: int) -> Tensor:
    """Scrambled Sobol points carried to a Gaussian, whose averages have less noise than those of independent draws."""
    uniform = torch.quasirandom.SobolEngine(gaussian.size, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    return gaussian.unwhitened(torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9)))
