"""Reverse KL divergence between Gaussians, by rounds of L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import Points
from pseudocoresets.methods.lbfgs import GOOD_ENOUGH, Objective, minimise, minimise_again, points_of
from pseudocoresets.methods.moment_matching import NearestGaussian
from pseudocoresets.methods.nearby import coreset_near, gaussian_near
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.solver import Solver, nearest_gaussian, smooth_model
from pseudocoresets.methods.starts import sharpened, starting_points
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import expected_log_joint

SMALLEST_GAIN = 1e-4
"""Nats by which a round must lower a divergence for another one to be worth a pass over the data."""


class _Round(NamedTuple):
    """Where a round of :class:`GaussianReverseKL` stands."""

    centre: Gaussian
    """q_u."""
    full: Gaussian
    """The Gaussian that the full posterior implies near q_u."""
    divergence: float
    """KL(q_u || pi) up to a constant."""
    forward: float
    """KL(q || q_u)."""


@dataclass(frozen=True)
class GaussianReverseKL(Solver):
    """Minimise KL(pi_u || pi) by the covariance gradient of Bayesian pseudo-coresets (Manousakas et al. 2020).

    With r(theta) = log-likelihood of the full data minus that of u, the gradient is
        grad_u KL = - Cov_{pi_u}[grad_u (log-likelihood of u), r].
    Under the Gaussian q_u = N(mu, S) and to second order in theta - mu this is, at u, the gradient of KL(g_u || g), the
    Gaussians that coreset and full data imply near q_u (:func:`gaussian_near`). That divergence, unlike the variance
    of r, which has the same gradient, grows without bound as a direction is left uncovered. A round makes some L-BFGS
    steps on it; then q_u is found anew and the full data are passed once more. The first round is made near q, where
    no pass is needed. A round is halved till it lowers KL(q_u || pi) and leaves KL(q || q_u) below ``limit``, its value
    after the first: fewer points than parameters leave directions at the prior, of which KL(pi_u || pi) is then almost
    the whole and falls while everything else goes wrong.
    """

    learn_weights: bool = False
    rounds: int = 40
    steps_per_round: int = 50

    name: ClassVar[str] = "gaussian-rkl"
    synthetic: ClassVar[bool] = True

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        form = starting_points(problem, size, seed, self.learn_weights)
        model, q = smooth_model(problem), nearest_gaussian(problem)
        free = minimise_again(form, form.flattened(form.initial()), self._divergence_near(model, q, q), 300, 3)
        nearest = NearestGaussian(q)
        here = self._look(problem, nearest, points_of(form, free))
        limit = here.forward + GOOD_ENOUGH
        for _ in range(self.rounds):
            objective = self._divergence_near(model, here.centre, here.full)
            proposal, _ = minimise(form, free, objective, self.steps_per_round)
            accepted = self._accept(problem, nearest, form, free, proposal, here.divergence, limit)
            if accepted is None:
                break
            gain = here.divergence - accepted[1].divergence
            free, here = accepted
            if gain < SMALLEST_GAIN:
                break
        return points_of(form, sharpened(problem, form, free))

    def _accept(
        self,
        problem: Problem,
        nearest: NearestGaussian,
        form: Parameterisation,
        free: Tensor,
        proposal: Tensor,
        divergence: float,
        limit: float,
    ) -> tuple[Tensor, _Round] | None:
        for halvings in range(10):
            candidate = free + 0.5**halvings * (proposal - free)
            try:
                there = self._look(problem, nearest, points_of(form, candidate))
            except DivergenceError:
                continue
            if there.divergence < divergence and there.forward < limit:
                return candidate, there
        return None

    def _look(self, problem: Problem, nearest: NearestGaussian, points: Points) -> _Round:
        """q_u and, by one pass over the data, the full posterior near it."""
        q = nearest(smooth_model(problem), points)
        joint = expected_log_joint(smooth_model(problem), q, problem.full_data())
        forward = float(kl_divergence(nearest_gaussian(problem), q))
        return _Round(q, gaussian_near(q, joint), -float(joint.value) - float(q.entropy), forward)

    def _divergence_near(self, model: SmoothModel, centre: Gaussian, full: Gaussian) -> Objective:
        return lambda points: kl_divergence(coreset_near(model, points, centre), full)


@dataclass(frozen=True)
class GaussianPSVI(GaussianReverseKL):
    """Bayesian pseudo-coresets as published: :class:`GaussianReverseKL` with learnt weights."""

    learn_weights: bool = True

    name: ClassVar[str] = "gaussian-psvi"
