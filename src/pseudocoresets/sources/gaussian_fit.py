"""The Gaussian nearest to a posterior: what constructions know of the full posterior, at the price of a few passes.

Among all Gaussians q = N(mu, S) it maximises the evidence lower bound

    ELBO(q) = E_q[log p(y | x, theta) + log pi0(theta)] + entropy(q)

whose stationary point is E_q[grad U] = 0, S^-1 = E_q[grad^2 U] (Opper & Archambeau 2009). It starts from the Laplace
approximation at the mode. For a Gaussian posterior both are exact.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian, cholesky
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import FullData, Points, sum_over, unit_weights
from pseudocoresets.core.seeds import Randomness, generator_for
from pseudocoresets.core.source import Draw
from pseudocoresets.models.expectation import Expectation, SmoothModel, check_data

if TYPE_CHECKING:
    from pseudocoresets.sources.yardstick import Yardstick

MORE_STARTS = 3
MOST_CURVED, MOST_QUARTERS = 10.0, 20
"""How many times more curved than a Gaussian a posterior may be on average where a search begins, and how many times
the covariance is divided by four till it is not."""
ROUNDING = 16 * torch.finfo(torch.float64).eps
"""Relative error of a sum over very many data."""
POINT_SCALE = 1e-4
"""Standard deviation, in units of the prior's or a posterior's, of the Gaussian that stands for a single point."""


@dataclass(frozen=True)
class GaussianFit:
    """Draws of q, the Gaussian nearest to the full posterior; it is found once, when first asked for."""

    model: SmoothModel
    data: FullData | Points
    start: Gaussian | None = None
    """A Gaussian near it, which saves passes."""

    @property
    def gaussian(self) -> Gaussian:
        """q; some ten passes over the data."""
        return self._timed[0]

    @property
    def seconds(self) -> float:
        """What :attr:`gaussian` cost; it belongs to the price of every method that uses it."""
        return self._timed[1]

    @cached_property
    def yardstick(self) -> Yardstick:
        """Measures coresets against the full posterior, of which it keeps weighted draws."""
        from pseudocoresets.sources.yardstick import Yardstick

        return Yardstick(self.model, self.data, self.gaussian)

    @cached_property
    def starts(self) -> dict[Hashable, Parameterisation]:
        """Where searches for pseudo-points begin, which is the same for many methods: each is found once."""
        return {}

    @cached_property
    def _timed(self) -> tuple[Gaussian, float]:
        began = time.perf_counter()
        check_data(self.model, self.data)
        gaussian = fit_gaussian(self.model, self.data, self.start)
        return gaussian, time.perf_counter() - began

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw:
        """Independent draws of q; ``later`` is ``start`` for no epochs, and independent of it for any."""
        start = self.gaussian.sample(count, randomness.device)
        return Draw(start, start if expert_epochs == 0 else self.gaussian.sample(count, randomness.device))


@torch.no_grad()
def expected_log_joint(model: SmoothModel, q: Gaussian, data: FullData | Points) -> Expectation:
    """E_q of log-likelihood plus log-prior with two derivatives; one pass over the data."""
    total = model.expected_log_prior(q)
    if isinstance(data, Points):
        return total + model.expected_log_likelihood(q, data.x, data.y, data.weights)
    return total + Expectation(*sum_over(data, partial(batch_expectation, model, q)))


def batch_expectation(model: SmoothModel, q: Gaussian, x: Tensor, y: Tensor) -> Expectation:
    """A term of :func:`expected_log_joint`."""
    return model.expected_log_likelihood(q, x, y, unit_weights(x))


def prior_gaussian(model: SmoothModel) -> Gaussian | None:
    """The Gaussian that the prior's curvature at the origin implies, where there is one; a Gaussian prior itself."""
    origin = nearly_a_point(torch.zeros(model.size, dtype=torch.float64))
    with torch.no_grad():
        prior = model.expected_log_prior(origin)
    try:
        return Gaussian.from_precision(origin.mean, -prior.hessian)
    except DivergenceError:
        return None


def find_mode(
    model: SmoothModel, data: FullData | Points, start: Tensor, steps: int = 100, tolerance: float = 1e-10
) -> Gaussian:
    """The Laplace approximation: the mode, by damped Newton steps, and the inverse Hessian there.

    theta <- theta - (H + damping I)^-1 grad U, with the damping raised until U falls; it ends when the Newton decrement
    grad U^T H^-1 grad U / 2, which is about the distance to the minimum in nats, is below ``tolerance``.
    """
    point, damping = start, 0.0
    here = expected_log_joint(model, nearly_a_point(point), data)
    for _ in range(steps):
        step = _damped_step(-here.hessian, here.gradient, damping)
        decrement = 0.5 * float(here.gradient @ step)
        if damping == 0.0 and decrement < tolerance:
            break
        there = expected_log_joint(model, nearly_a_point(point + step), data)
        if bool(torch.isfinite(there.value)) and there.value > here.value - 1e-12 * here.value.abs():
            point, here, damping = point + step, there, 0.0 if damping < 1e-3 else damping / 10
        else:
            damping = max(10 * damping, 1e-2 * float(here.hessian.diagonal().abs().mean()))
            if damping > 1e12 * (1 + float(here.hessian.diagonal().abs().mean())):
                break
    return Gaussian.from_precision(point, -here.hessian)


def fit_gaussian(
    model: SmoothModel,
    data: FullData | Points,
    start: Gaussian | None = None,
    steps: int = 50,
    tolerance: float = 1e-9,
) -> Gaussian:
    """The Gaussian of largest ELBO; ``start`` saves the search for the mode.

    S_new^-1 = (1 - t) S^-1 + t E_q[grad^2 U],  mu_new = mu - t S_new E_q[grad U],   t = 1, 1/2, ... till the ELBO rises

    tr(S E_q[grad^2 U]) is the number of parameters at the end and for a Gaussian posterior; a start where it is far
    larger is made narrower first, because the first step would leave almost no width.
    """
    q = start
    if model.has_gaussian_posterior:
        return _exact(model, data)
    if q is None:
        q = _first_mode(model, data)
    here = expected_log_joint(model, q, data)
    for _ in range(MOST_QUARTERS):
        if float((q.covariance * -here.hessian).sum()) < MOST_CURVED * model.size:
            break
        q = Gaussian(q.mean, q.covariance / 4)
        here = expected_log_joint(model, q, data)
    bound = here.value + q.entropy
    for _ in range(steps):
        proposal = _raise_bound(model, data, q, here, bound)
        if proposal is None:
            break
        q, here, new_bound = proposal
        gain, bound = float(new_bound - bound), new_bound
        if gain < max(tolerance, ROUNDING * float(bound.abs())):
            break
    return q


def _first_mode(model: SmoothModel, data: FullData | Points) -> Gaussian:
    """A mode near the origin; where that is a saddle, as of exchangeable components, near a few other points."""
    starts = torch.randn(MORE_STARTS, model.size, generator=generator_for(0, "starts near the origin")).double()
    for start in (torch.zeros(model.size, dtype=torch.float64), *starts):
        try:
            return find_mode(model, data, start)
        except DivergenceError as error:
            failure = error
    raise failure


def _exact(model: SmoothModel, data: FullData | Points) -> Gaussian:
    """The posterior of a model whose log-joint is quadratic in theta: one Newton step from anywhere."""
    origin = torch.zeros(model.size, dtype=torch.float64)
    here = expected_log_joint(model, nearly_a_point(origin), data)
    factor = cholesky(-here.hessian, "The posterior's precision")
    return Gaussian(torch.cholesky_solve(here.gradient[:, None], factor)[:, 0], torch.cholesky_inverse(factor))


def _raise_bound(
    model: SmoothModel, data: FullData | Points, q: Gaussian, here: Expectation, bound: Tensor
) -> tuple[Gaussian, Expectation, Tensor] | None:
    precision = torch.cholesky_inverse(q.factor)
    slack = 1e-12 * (1 + float(bound.abs()))
    for halvings in range(12):
        t = 0.5**halvings
        try:
            new_precision = (1 - t) * precision - t * here.hessian
            covariance = torch.cholesky_inverse(cholesky(new_precision, "The posterior's curvature"))
            proposal = Gaussian(q.mean + t * covariance @ here.gradient, covariance)
            there = expected_log_joint(model, proposal, data)
            new_bound = there.value + proposal.entropy
        except DivergenceError:
            continue
        if bool(torch.isfinite(new_bound)) and new_bound >= bound - slack:
            return proposal, there, new_bound
    return None


def nearly_a_point(point: Tensor) -> Gaussian:
    """A Gaussian so narrow that averages over it are values at the point."""
    return Gaussian(point, POINT_SCALE**2 * torch.eye(len(point), dtype=point.dtype))


def _damped_step(curvature: Tensor, gradient: Tensor, damping: float) -> Tensor:
    """(curvature + damping I)^-1 gradient, with more damping where that is not positive definite."""
    identity = torch.eye(len(gradient), dtype=gradient.dtype)
    scale = float(curvature.diagonal().abs().mean()) + 1e-300
    for _ in range(60):
        factor, failed = torch.linalg.cholesky_ex(curvature + damping * identity)
        if not bool(failed):
            return torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        damping = max(10 * damping, 1e-6 * scale)
    raise DivergenceError("The curvature of the posterior is not finite; check the data for values that are too large.")
