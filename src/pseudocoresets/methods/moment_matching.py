"""Pseudo-coresets for models whose posterior can be known.

Notation: q is the Gaussian nearest to the full posterior (``PosteriorProblem.approximation``); u = (x~, y~, w) are the
synthetic points, targets and weights; U_u their potential, pi_u their posterior and q_u the Gaussian nearest to pi_u.
Targets are learnt where the model says what they may be (any number, a soft label, ...), weights where the method does.
No method reads samples of a reference posterior.

Every search starts from the same place (:func:`starting_points`): real points that say much about theta under q, moved
till the Gaussian that they imply near q has q's moments. Points drawn uniformly are a bad start. Most are so far from
the decision boundary that their likelihood is flat, no gradient moves them, and the directions that they should cover
stay at the prior; the divergences have local minima there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian, cholesky, kl_divergence, squared_wasserstein
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import whitened_target
from pseudocoresets.kernels.chain import advance
from pseudocoresets.kernels.langevin import Langevin
from pseudocoresets.methods.posterior_problem import PosteriorProblem, check_size, uniform_points
from pseudocoresets.methods.selection.vectors import likelihood_vectors
from pseudocoresets.models.glm import Expectation, PseudoTarget, SmoothModel
from pseudocoresets.sources.gaussian_fit import expected_log_joint, find_mode, fit_gaussian

SMALLEST_TARGET = 1e-3
"""How near to the edge of its range a learnt target starts."""
POINTS_TO_CHOOSE_FROM = 500
GOOD_ENOUGH = 1e-2
"""Nats below which a divergence needs no more work."""
START_NEAR = 0.5
"""Nats below which a short search for a start has not lost a direction."""
START_ENOUGH = 1e-3
"""Nats below which a start is left to the method that asked for it."""
SMALLEST_GAIN = 1e-4
"""Nats by which a round must lower a divergence for another one to be worth a pass over the data."""


# --- the unknowns ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PseudoPoints:
    """The free numbers behind a pseudo-coreset, as one flat vector.

    x~ = scale * free,  y~ by the model's range (identity, exp, sigmoid or softmax),  w = w_0 exp(free)
    """

    start: Points
    scale: Tensor
    pseudo_target: PseudoTarget
    learn_weights: bool
    classes: int = 0

    @classmethod
    def from_data(
        cls, problem: PosteriorProblem, size: int, seed: int, learn_weights: bool, starts: int = 1
    ) -> list[PseudoPoints]:
        """Real points out of a uniform subsample, drawn ``starts`` times in proportion to Var_q of log p(y_i | x_i).

        The scale of each feature is that of the subsample.
        """
        check_size(problem.data_size, size)
        many = uniform_points(problem, min(problem.data_size, max(2 * size, POINTS_TO_CHOOSE_FROM)), seed)
        variances = likelihood_vectors(problem.model, problem.approximation, many.x, many.y, seed=seed).squared_norms
        chances = variances.clamp_min(0) + 1e-9 * variances.mean() + 1e-300
        generator = generator_for(seed, "informative points", size)
        weights = torch.full((size,), problem.data_size / size, dtype=many.x.dtype)
        scale = many.x.std(0) if len(many) > 1 else torch.ones_like(many.x[0])
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        rest = scale, problem.model.pseudo_target, learn_weights, getattr(problem.model, "classes", 0)
        draws = (torch.multinomial(chances, size, generator=generator) for _ in range(starts))
        return [cls(Points(many.x[drawn], many.y[drawn], weights), *rest) for drawn in draws]

    def initial(self) -> Tensor:
        parts = [self.start.x / self.scale, self._free_targets(), torch.zeros(len(self.start)).double()]
        return torch.cat([part.reshape(-1).double() for part in parts])

    def points(self, free: Tensor) -> Points:
        """The coreset behind the vector, differentiable in it."""
        m, targets = len(self.start), self._free_targets()
        x, rest = free[: self.start.x.numel()], free[self.start.x.numel() :]
        y, log_weights = rest[: targets.numel()].reshape(targets.shape), rest[targets.numel() :]
        weights = self.start.weights * log_weights.clamp(-30, 30).exp() if self.learn_weights else self.start.weights
        return Points(x.reshape(m, -1) * self.scale, self._targets(y), weights)

    def _free_targets(self) -> Tensor:
        y = self.start.y.double()
        if self.pseudo_target == "real":
            return y
        if self.pseudo_target == "positive":
            return y.clamp_min(0.1).log()
        if self.pseudo_target == "unit":
            return torch.logit(y, SMALLEST_TARGET)
        if self.pseudo_target == "simplex":
            hard = torch.nn.functional.one_hot(self.start.y.long(), self.classes).double()
            return (hard + SMALLEST_TARGET).log()
        return y.new_empty(0)

    def _targets(self, free: Tensor) -> Tensor:
        if self.pseudo_target == "real":
            return free
        if self.pseudo_target == "positive":
            return free.clamp(max=30).exp()
        if self.pseudo_target == "unit":
            return torch.sigmoid(free)
        if self.pseudo_target == "simplex":
            return torch.softmax(free, -1)
        return self.start.y


Objective = Callable[[Points], Tensor]


class _Enough(Exception):
    """Raised where a search has come as far as was asked."""


def minimise(
    points: PseudoPoints, free: Tensor, objective: Objective, iterations: int, enough: float = -math.inf
) -> tuple[Tensor, float]:
    """The best vector of at most ``iterations`` of L-BFGS and its value; what is not finite is infinitely bad.

    The search ends at the first value below ``enough``.
    """
    from scipy.optimize import minimize

    best: dict[str, np.ndarray | float] = {"value": math.inf, "free": free.numpy()}

    def value_and_gradient(vector: np.ndarray) -> tuple[float, np.ndarray]:
        unknown = torch.from_numpy(vector).requires_grad_()
        try:
            value = objective(points.points(unknown))
            (gradient,) = torch.autograd.grad(value, unknown)
        except DivergenceError:
            return 1e30, np.zeros_like(vector)
        if not (bool(torch.isfinite(value)) and bool(torch.isfinite(gradient).all())):
            return 1e30, np.zeros_like(vector)
        value = value.detach()
        if float(value) < best["value"]:
            best.update(value=float(value), free=vector.copy())
        if float(value) < enough:
            raise _Enough
        return float(value), gradient.numpy()

    options = {"maxiter": iterations, "maxfun": 2 * iterations + 20, "ftol": 1e-13, "gtol": 1e-9, "maxcor": 20}
    with contextlib.suppress(_Enough):
        minimize(value_and_gradient, free.numpy(), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(np.asarray(best["free"])), float(best["value"])


def minimise_again(
    points: PseudoPoints,
    free: Tensor,
    objective: Objective,
    iterations: int,
    restarts: int,
    enough: float = -math.inf,
) -> Tensor:
    """:func:`minimise`, started again up to ``restarts`` times while that lowers a divergence by a twentieth."""
    free, before = minimise(points, free, objective, iterations, enough)
    for _ in range(restarts):
        if before < GOOD_ENOUGH:
            break
        free, after = minimise(points, free, objective, iterations, enough)
        if after > 0.95 * before:
            break
        before = after
    return free


# --- the start ------------------------------------------------------------------------------------


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
    """KL(q || g_u) with g_u = :func:`coreset_near` q: what :class:`ForwardKL` minimises, for a fiftieth of the work."""
    return lambda points: kl_divergence(q, coreset_near(model, points, q))


def starting_points(
    problem: PosteriorProblem, size: int, seed: int, learn_weights: bool, starts: int = 4
) -> tuple[PseudoPoints, Tensor]:
    """Informative real points, moved to the least :func:`forward_kl_near`.

    About one search in four ends where two points share a direction and another has none. The best of several short
    ones is continued, or the first that comes near.
    """
    forward = forward_kl_near(problem.model, problem.approximation)
    best: tuple[PseudoPoints, Tensor, float] | None = None
    for points in PseudoPoints.from_data(problem, size, seed, learn_weights, starts):
        search = points, *minimise(points, points.initial(), forward, 100, START_ENOUGH)
        best = search if best is None or search[2] < best[2] else best
        if best[2] < START_NEAR:
            break
    assert best is not None
    return best[0], minimise_again(best[0], best[1], forward, 300, 3, START_ENOUGH)


def _without_graph(points: Points) -> Points:
    return replace(points, x=points.x.detach(), y=points.y.detach(), weights=points.weights.detach())


class _NearestGaussian:
    """q_u, searched from where it was last time."""

    def __init__(self, model: SmoothModel, start: Gaussian | None = None) -> None:
        self._model = model
        self._last = start

    def __call__(self, points: Points) -> Gaussian:
        still = _without_graph(points)
        with torch.no_grad():
            try:
                q = fit_gaussian(self._model, still, self._last)
            except DivergenceError:
                q = fit_gaussian(self._model, still)
        self._last = q
        return q


# --- forward KL -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForwardKL:
    """Minimise KL(q || pi_u), whose gradient matches moments: E_q[grad_u U_u] - E_{pi_u}[grad_u U_u].

    With pi_u replaced by q_u in the second term this is the exact gradient of
        F(u) = E_q[U_u] - entropy(q) - (E_{q_u}[U_u] - entropy(q_u)) = KL(q || pi_u) - KL(q_u || pi_u) >= 0,
    because q_u minimises its own term. F vanishes only where q itself is the Gaussian nearest to pi_u.
    """

    learn_weights: bool = False
    iterations: int = 300
    restarts: int = 5
    synthetic: ClassVar[bool] = True
    uses_approximation: ClassVar[bool] = True

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        points, free = starting_points(problem, size, seed, self.learn_weights)
        loss = ForwardKLLoss(problem.model, problem.approximation)
        return points.points(minimise_again(points, free, loss, self.iterations, self.restarts))


class ForwardKLLoss:
    """F(u) of :class:`ForwardKL`."""

    def __init__(self, model: SmoothModel, full: Gaussian) -> None:
        self._model, self._full = model, full
        self._nearest = _NearestGaussian(model)
        self._full_prior = model.expected_log_prior(full).value.detach()
        self.last = math.nan

    def __call__(self, points: Points) -> Tensor:
        nearest = self._nearest(points)
        data = points.x, points.y, points.weights
        near = self._model.expected_log_likelihood(nearest, *data).value
        far = self._model.expected_log_likelihood(self._full, *data).value
        constants = self._model.expected_log_prior(nearest).value.detach() - self._full_prior
        loss = near - far + constants + nearest.entropy - self._full.entropy
        self.last = float(loss.detach())
        if self.last < -1e-6 * (1 + abs(float(far.detach()))):
            raise DivergenceError("The search for the Gaussian nearest to the coreset posterior did not end.")
        return loss


# --- contrastive divergence -----------------------------------------------------------------------


@dataclass(frozen=True)
class ContrastiveDivergence:
    """grad_u (1/N) sum_j [U_u(theta+_j) - U_u(theta-_j)]: theta+ ~ q, theta- = theta+ after k Langevin steps on pi_u.

    The chains move in coordinates theta = mu + L phi with (L L^T)^-1 the mean of q's precision and the coreset's
    curvature, in which no curvature exceeds two and every step size below one is stable. The points follow Adam with a
    step size that falls to zero, so that the noise of the chains averages out, and that is small from the beginning,
    because a larger one would lose what the start has found.
    """

    steps: int = 10
    step_size: float = 0.2
    chains: int = 256
    iterations: int = 600
    learning_rate: float = 0.005
    learn_weights: bool = False
    synthetic: ClassVar[bool] = True
    uses_approximation: ClassVar[bool] = True

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        points, free = starting_points(problem, size, seed, self.learn_weights)
        generator = generator_for(seed, "contrastive divergence", size)
        free.requires_grad_()
        optimiser = torch.optim.Adam([free], lr=self.learning_rate, betas=(0.9, 0.99))
        for iteration in range(self.iterations):
            share = 0.5 * (1 + math.cos(math.pi * iteration / self.iterations))
            optimiser.param_groups[0]["lr"] = self.learning_rate * share
            now = points.points(free)
            positive, negative = self.pairs(problem, _without_graph(now), generator)
            loss = self._energy(problem, now, positive) - self._energy(problem, now, negative)
            (free.grad,) = torch.autograd.grad(loss, free)
            optimiser.step()
        return _without_graph(points.points(free.detach()))

    def pairs(self, problem: PosteriorProblem, points: Points, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """theta+ and theta-, each (chains, size)."""
        q = problem.approximation
        target = whitened_target(problem.model, points, self._coordinates(problem, points))
        positive = q.sample(self.chains, generator)
        start = target.phi(positive)
        end = advance(Langevin(self.step_size), start, target, self.steps, generator)
        if not bool(torch.isfinite(end).all()):
            raise DivergenceError("A contrastive-divergence chain left the finite numbers; lower its step size.")
        return positive, target.theta(end)

    def _coordinates(self, problem: PosteriorProblem, points: Points) -> Gaussian:
        q = problem.approximation
        curvature = -expected_log_joint(problem.model, q, points).hessian
        return Gaussian.from_precision(q.mean, 0.5 * (torch.cholesky_inverse(q.factor) + curvature))

    def _energy(self, problem: PosteriorProblem, points: Points, theta: Tensor) -> Tensor:
        return -(problem.model.log_likelihood(theta, points.x, points.y) @ points.weights).mean()


# --- reverse KL -----------------------------------------------------------------------------------


class _Round(NamedTuple):
    """Where a round of :class:`ReverseKL` stands."""

    centre: Gaussian
    """q_u."""
    full: Gaussian
    """The Gaussian that the full posterior implies near q_u."""
    divergence: float
    """KL(q_u || pi) up to a constant."""
    forward: float
    """KL(q || q_u)."""


@dataclass(frozen=True)
class ReverseKL:
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
    synthetic: ClassVar[bool] = True
    uses_approximation: ClassVar[bool] = True

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        points, free = starting_points(problem, size, seed, self.learn_weights)
        q = problem.approximation
        free = minimise_again(points, free, self._divergence_near(problem.model, q, q), 300, 3)
        nearest = _NearestGaussian(problem.model, q)
        here = self._look(problem, nearest, points.points(free))
        limit = here.forward + GOOD_ENOUGH
        for _ in range(self.rounds):
            objective = self._divergence_near(problem.model, here.centre, here.full)
            proposal, _ = minimise(points, free, objective, self.steps_per_round)
            accepted = self._accept(problem, nearest, points, free, proposal, here.divergence, limit)
            if accepted is None:
                break
            gain = here.divergence - accepted[1].divergence
            free, here = accepted
            if gain < SMALLEST_GAIN:
                break
        return _without_graph(points.points(free))

    def _accept(
        self,
        problem: PosteriorProblem,
        nearest: _NearestGaussian,
        points: PseudoPoints,
        free: Tensor,
        proposal: Tensor,
        divergence: float,
        limit: float,
    ) -> tuple[Tensor, _Round] | None:
        for halvings in range(10):
            candidate = free + 0.5**halvings * (proposal - free)
            try:
                there = self._look(problem, nearest, points.points(candidate))
            except DivergenceError:
                continue
            if there.divergence < divergence and there.forward < limit:
                return candidate, there
        return None

    def _look(self, problem: PosteriorProblem, nearest: _NearestGaussian, points: Points) -> _Round:
        """q_u and, by one pass over the data, the full posterior near it."""
        q = nearest(points)
        joint = expected_log_joint(problem.model, q, problem.data)
        forward = float(kl_divergence(problem.approximation, q))
        return _Round(q, gaussian_near(q, joint), -float(joint.value) - float(q.entropy), forward)

    def _divergence_near(self, model: SmoothModel, centre: Gaussian, full: Gaussian) -> Objective:
        return lambda points: kl_divergence(coreset_near(model, points, centre), full)


@dataclass(frozen=True)
class PseudoSparseVI(ReverseKL):
    """Bayesian pseudo-coresets as published: :class:`ReverseKL` with learnt weights."""

    learn_weights: bool = True


# --- Wasserstein ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wasserstein:
    """Minimise W2^2 between q and the Laplace approximation of pi_u, relative to the trace of q's covariance.

    The mode moves with u by the implicit function theorem, theta(u) = theta* - H^-1 grad U_u(theta*), the limit of
    differentiating through an infinitely long inner optimisation.
    """

    learn_weights: bool = False
    iterations: int = 500
    synthetic: ClassVar[bool] = True
    uses_approximation: ClassVar[bool] = True

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        points, free = starting_points(problem, size, seed, self.learn_weights)
        full = problem.approximation
        start = full.mean
        scale = full.covariance.diagonal().sum()

        def distance(now: Points) -> Tensor:
            nonlocal start
            laplace = differentiable_laplace(problem.model, now, start)
            start = laplace.mean.detach()
            return squared_wasserstein(full, laplace) / scale

        free, _ = minimise(points, free, distance, self.iterations)
        return _without_graph(points.points(free))


def differentiable_laplace(model: SmoothModel, points: Points, start: Tensor) -> Gaussian:
    """The Laplace approximation of pi_u, with exact derivatives in u."""
    found = find_mode(model, _without_graph(points), start)
    data = points.x, points.y, points.weights
    with torch.enable_grad():
        still = Gaussian(found.mean, 1e-8 * found.covariance)
        slope = model.expected_log_likelihood(still, *data).gradient + model.expected_log_prior(still).gradient
        moving = Gaussian(found.mean + found.covariance @ slope, 1e-8 * found.covariance)
        bend = model.expected_log_likelihood(moving, *data).hessian + model.expected_log_prior(moving).hessian
        covariance = torch.cholesky_inverse(cholesky(-bend, "The coreset posterior's curvature"))
    return Gaussian(moving.mean, covariance)
