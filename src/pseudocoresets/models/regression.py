"""Regressions with parameters beside their coefficients: unknown noise, overdispersion, cutpoints, groups, survival.

theta = (beta, extra), eta = x . beta, with the prior N(0, prior_scale^2 I) on theta (but on random intercepts their
own). What must be positive is the exponential of an element of theta.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.parameterisation import TargetRange
from pseudocoresets.models.expectation import AveragedOverNodes, Expectation, require_features
from pseudocoresets.models.glm import (
    as_probabilities,
    log_bernoulli,
    log_poisson,
    require_classes,
    require_counts,
    require_labels,
    require_one_target,
)
from pseudocoresets.models.prior import NormalPrior


@dataclass(frozen=True)
class ExtendedRegression(NormalPrior, AveragedOverNodes, ABC):
    """p(y | x, theta) = p(y | eta, extra), eta = x . beta; an intercept is a column of ones in ``x``."""

    features: int
    prior_scale: float = 1.0

    @property
    @abstractmethod
    def pseudo_target(self) -> TargetRange:
        """What the target of a synthetic point may become."""

    @property
    def classes(self) -> int:
        return 0

    @property
    def extras(self) -> int:
        """How many parameters stand after the coefficients."""
        return 1

    @property
    def size(self) -> int:
        return self.features + self.extras

    def check_data(self, x: Tensor, y: Tensor) -> None:
        require_features(x, self.features)
        require_one_target(y)

    @abstractmethod
    def log_density(self, eta: Tensor, extra: Tensor, y: Tensor) -> Tensor:
        """log p(y | eta, extra) for eta (..., m) and extra (..., 1, extras)."""

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        beta, extra = theta[..., : self.features], theta[..., None, self.features :]
        return self.log_density(beta @ x.T, extra, y)


def log_normal(y: Tensor, mean: Tensor, log_sigma: Tensor) -> Tensor:
    """log N(y; mean, sigma^2)"""
    return -0.5 * ((y - mean) * (-log_sigma).exp()).square() - log_sigma - 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class GaussianRegression(ExtendedRegression):
    """y ~ N(eta, sigma^2) with an unknown sigma = exp(extra)."""

    pseudo_target: ClassVar[TargetRange] = "real"

    def log_density(self, eta: Tensor, extra: Tensor, y: Tensor) -> Tensor:
        return log_normal(y, eta, extra[..., 0])


@dataclass(frozen=True)
class StudentTRegression(ExtendedRegression):
    """y = eta + sigma t, t of Student's t distribution with ``degrees`` of freedom, sigma = exp(extra) unknown."""

    degrees: float = 4.0

    pseudo_target: ClassVar[TargetRange] = "real"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.degrees > 0:
            raise InputError(f"Student's t distribution needs positive degrees of freedom; got {self.degrees}.")

    def log_density(self, eta: Tensor, extra: Tensor, y: Tensor) -> Tensor:
        nu, log_sigma = self.degrees, extra[..., 0]
        constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi)
        squared = ((y - eta) * (-log_sigma).exp()).square()
        return constant - log_sigma - 0.5 * (nu + 1) * torch.log1p(squared / nu)


@dataclass(frozen=True)
class NegativeBinomialRegression(ExtendedRegression):
    """Counts y of mean mu = exp(eta) and variance mu + mu^2 / phi, phi = exp(extra) unknown."""

    pseudo_target: ClassVar[TargetRange] = "positive"

    def check_data(self, x: Tensor, y: Tensor) -> None:
        super().check_data(x, y)
        require_counts(y, "Negative binomial regression")

    def log_density(self, eta: Tensor, extra: Tensor, y: Tensor) -> Tensor:
        log_phi = extra[..., 0]
        phi = log_phi.exp()
        log_total = torch.logaddexp(eta, log_phi)
        binomial = torch.lgamma(y + phi) - torch.lgamma(phi) - torch.lgamma(y + 1)
        return binomial + phi * (log_phi - log_total) + y * (eta - log_total)


@dataclass(frozen=True)
class OrdinalRegression(ExtendedRegression):
    """P(y <= k | x) = 1 / (1 + exp(eta - c_k)) for ``levels`` levels 0, 1, ...; y: levels or their probabilities.

    The cutpoints rise by construction: c_0 = extra_0, c_k = c_{k-1} + exp(extra_k). They stand for the intercept, of
    which ``x`` should have no column.
    """

    levels: int = 3

    pseudo_target: ClassVar[TargetRange] = "simplex"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels < 2:
            raise InputError(f"Ordinal regression needs at least two levels; got {self.levels}.")

    @property
    def classes(self) -> int:
        return self.levels

    @property
    def extras(self) -> int:
        return self.levels - 1

    def check_data(self, x: Tensor, y: Tensor) -> None:
        require_features(x, self.features)
        require_classes(y, self.levels, "Ordinal regression", "levels")

    def log_density(self, eta: Tensor, extra: Tensor, y: Tensor) -> Tensor:
        steps = torch.cat([extra[..., :1], extra[..., 1:].exp()], -1)
        gaps = steps.cumsum(-1) - eta[..., None]
        inner = _log_difference_of_sigmoids(gaps[..., 1:], gaps[..., :-1])
        logs = torch.cat([F.logsigmoid(gaps[..., :1]), inner, F.logsigmoid(-gaps[..., -1:])], -1)
        return (as_probabilities(y, self.levels, logs.dtype) * logs).sum(-1)


def _log_difference_of_sigmoids(upper: Tensor, lower: Tensor) -> Tensor:
    """log(sigmoid(b) - sigmoid(a)) = logsigmoid(b) + logsigmoid(-a) + log(1 - exp(a - b)) for a < b."""
    return F.logsigmoid(upper) + F.logsigmoid(-lower) + torch.log(-torch.expm1(lower - upper))


@dataclass(frozen=True)
class WeibullSurvival(ExtendedRegression):
    """Survival times of hazard h(t) = (k / s) (t / s)^(k - 1), s = exp(eta), k = exp(extra), with right censoring.

    y (n, 2) holds a positive time and 1 for an event then, or 0 where the time was censored:
        log p = event log h(t) - (t / s)^k.
    """

    pseudo_target: ClassVar[TargetRange] = "positive"

    def check_data(self, x: Tensor, y: Tensor) -> None:
        require_features(x, self.features)
        if y.ndim != 2 or y.shape[1] != 2:
            raise InputError(
                "Survival data need targets (n, 2): a time, and 1 for an event or 0 where it was censored; got "
                f"{tuple(y.shape)}."
            )
        if not bool((y[:, 0] > 0).all()) or bool((y[:, 1] < 0).any()):
            raise InputError("Survival times must be positive, and events 1 (seen) or 0 (censored).")

    def log_density(self, eta: Tensor, extra: Tensor, y: Tensor) -> Tensor:
        log_shape, log_time = extra[..., 0], y[:, 0].log()
        scaled = log_shape.exp() * (log_time - eta)
        return y[:, 1] * (log_shape + scaled - log_time) - scaled.exp()


Family = Literal["gaussian", "logistic", "poisson"]


@dataclass(frozen=True)
class RandomIntercepts(ExtendedRegression):
    """A mixed-effects model: eta + u_g for a datum of group g, with u_g ~ N(0, tau^2) for each of ``groups`` groups.

    The last column of ``x`` is the number of the group, 0, 1, ...; it is no feature, and synthetic points keep it.
    extra = (u_1, ..., u_G, log tau), and log sigma for the family ``gaussian``; only the prior knows tau. Binary data
    say so little about a group that the density of (u, log tau) peaks at tau = 0, where no mass is: for them extra has
    u / tau in place of u (:attr:`scaled`).
    """

    groups: int = 2
    family: Family = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1:
            raise InputError(f"Random intercepts need at least one group; got {self.groups}.")

    @property
    def pseudo_target(self) -> TargetRange:
        ranges: dict[Family, TargetRange] = {"gaussian": "real", "logistic": "unit", "poisson": "positive"}
        return ranges[self.family]

    @property
    def extras(self) -> int:
        return 1 + self.groups + (self.family == "gaussian")

    def check_data(self, x: Tensor, y: Tensor) -> None:
        super().check_data(x[:, :-1], y)
        group = x[:, -1]
        if bool(((group < 0) | (group >= self.groups) | ((group - group.round()).abs() > 1e-6)).any()):
            raise InputError(f"The last column must hold groups 0 to {self.groups - 1}.")
        if self.family == "poisson":
            require_counts(y, "The family 'poisson'")
        if self.family == "logistic":
            require_labels(y, "The family 'logistic'")

    @property
    def scaled(self) -> bool:
        """Whether theta holds u / tau."""
        return self.family == "logistic"

    def intercepts(self, theta: Tensor) -> Tensor:
        """u, (..., groups)."""
        _, found, log_tau = self._parts(theta)
        return found * log_tau.exp() if self.scaled else found

    def group_of(self, x: Tensor) -> Tensor:
        """The group of each point, (m,)."""
        return x[:, -1].detach().round().long()

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        beta, extra = theta[..., : self.features], theta[..., self.features :]
        eta = beta @ x[:, :-1].T + self.intercepts(theta).index_select(-1, self.group_of(x))
        return self.log_density(eta, extra[..., None, :], y)

    def log_density(self, eta: Tensor, extra: Tensor, y: Tensor) -> Tensor:
        if self.family == "logistic":
            return log_bernoulli(eta, y)
        if self.family == "poisson":
            return log_poisson(eta, y)
        return log_normal(y, eta, extra[..., -1])

    def log_prior(self, theta: Tensor) -> Tensor:
        others, intercepts, log_tau = self._parts(theta)
        log_scale = torch.zeros_like(log_tau) if self.scaled else log_tau
        spread = -0.5 * (intercepts * (-log_scale).exp()).square().sum(-1) - self.groups * log_scale[..., 0]
        return spread - 0.5 * (others / self.prior_scale).square().sum(-1)

    def log_prior_gradient(self, theta: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            return torch.autograd.grad(self.log_prior(leaf).sum(), leaf)[0]

    def expected_log_prior(self, q: Gaussian) -> Expectation:
        return AveragedOverNodes.expected_log_prior(self, q)

    def _parts(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What has the prior N(0, prior_scale^2), log tau among it; the intercepts as theta holds them; and log tau."""
        last = self.features + self.groups
        others = torch.cat([theta[..., : self.features], theta[..., last:]], -1)
        return others, theta[..., self.features : last], theta[..., last : last + 1]
