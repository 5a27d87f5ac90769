"""Pseudo-coresets for models whose posterior can be known.

Notation: q is the Gaussian nearest to the full posterior (``PosteriorProblem.approximation``); u = (x~, y~, w) are the
synthetic points, targets and weights; U_u their potential, pi_u their posterior and q_u the Gaussian nearest to pi_u.
Targets are learnt where the model says what they may be (any number, a soft label, ...), weights where the method does.
No method reads samples of a reference posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.errors import DivergenceError
from pseudocoresets.kernels.chain import advance
from pseudocoresets.kernels.langevin import Langevin
from pseudocoresets.posterior.approximation import expected_log_joint, find_mode, fit_gaussian
from pseudocoresets.posterior.gaussian import Gaussian, cholesky, squared_wasserstein
from pseudocoresets.posterior.models import PseudoTarget, SmoothModel
from pseudocoresets.posterior.points import WeightedPoints
from pseudocoresets.posterior.problem import PosteriorProblem, check_size, uniform_points
from pseudocoresets.posterior.target import whitened_target
from pseudocoresets.seeds import generator_for

SMALLEST_TARGET = 1e-3
"""How near to the edge of its range a learnt target starts."""
POINTS_FOR_SCALE = 500
GOOD_ENOUGH = 1e-2
"""Nats below which a divergence needs no more work."""


# --- the unknowns ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PseudoPoints:
    """The free numbers behind a pseudo-coreset, as one flat vector.

    x~ = scale * free,  y~ by the model's range (identity, exp, sigmoid or softmax),  w = w_0 exp(free)
    """

    start: WeightedPoints
    scale: Tensor
    pseudo_target: PseudoTarget
    learn_weights: bool
    classes: int = 0

    @classmethod
    def from_data(cls, problem: PosteriorProblem, size: int, seed: int, learn_weights: bool) -> PseudoPoints:
        """A uniform subsample to start from; the scale of each feature is that of a larger one."""
        larger = uniform_points(problem, min(problem.data_size, max(size, POINTS_FOR_SCALE)), seed)
        check_size(problem.data_size, size)
        weights = torch.full((size,), problem.data_size / size, dtype=larger.x.dtype)
        start = WeightedPoints(larger.x[:size], larger.y[:size], weights)
        scale = larger.x.std(0) if len(larger) > 1 else torch.ones_like(larger.x[0])
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return cls(start, scale, problem.model.pseudo_target, learn_weights, getattr(problem.model, "classes", 0))

    def initial(self) -> Tensor:
        parts = [self.start.x / self.scale, self._free_targets(), torch.zeros(len(self.start)).double()]
        return torch.cat([part.reshape(-1).double() for part in parts])

    def points(self, free: Tensor) -> WeightedPoints:
        """The coreset behind the vector, differentiable in it."""
        m, targets = len(self.start), self._free_targets()
        x, rest = free[: self.start.x.numel()], free[self.start.x.numel() :]
        y, log_weights = rest[: targets.numel()].reshape(targets.shape), rest[targets.numel() :]
        weights = self.start.weights * log_weights.clamp(-30, 30).exp() if self.learn_weights else self.start.weights
        return WeightedPoints(x.reshape(m, -1) * self.scale, self._targets(y), weights)

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


Objective = Callable[[WeightedPoints], Tensor]


def minimise(points: PseudoPoints, free: Tensor, objective: Objective, iterations: int) -> tuple[Tensor, float]:
    """The best vector of at most ``iterations`` of L-BFGS and its value; what is not finite is infinitely bad."""
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
        return float(value), gradient.numpy()

    options = {"maxiter": iterations, "maxfun": 2 * iterations + 20, "ftol": 1e-13, "gtol": 1e-9, "maxcor": 20}
    minimize(value_and_gradient, free.numpy(), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(np.asarray(best["free"])), float(best["value"])


def _without_graph(points: WeightedPoints) -> WeightedPoints:
    return replace(points, x=points.x.detach(), y=points.y.detach(), weights=points.weights.detach())


class _NearestGaussian:
    """q_u, searched from where it was last time."""

    def __init__(self, model: SmoothModel, start: Gaussian | None = None) -> None:
        self._model = model
        self._last = start

    def __call__(self, points: WeightedPoints) -> Gaussian:
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
    because q_u minimises its own term. F vanishes only where q itself is the Gaussian nearest to pi_u. L-BFGS starts
    again, up to ``restarts`` times, while that lowers F by a twentieth.
    """

    learn_weights: bool = False
    iterations: int = 300
    restarts: int = 5
    synthetic: ClassVar[bool] = True
    uses_approximation: ClassVar[bool] = True

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> WeightedPoints:
        points = PseudoPoints.from_data(problem, size, seed, self.learn_weights)
        loss = ForwardKLLoss(problem.model, problem.approximation)
        free, before = minimise(points, points.initial(), loss, self.iterations)
        for _ in range(self.restarts):
            if before < GOOD_ENOUGH:
                break
            free, after = minimise(points, free, loss, self.iterations)
            if after > 0.95 * before:
                break
            before = after
        return points.points(free)


class ForwardKLLoss:
    """F(u) of :class:`ForwardKL`."""

    def __init__(self, model: SmoothModel, full: Gaussian) -> None:
        self._model, self._full = model, full
        self._nearest = _NearestGaussian(model)
        self._full_prior = model.expected_log_prior(full).value.detach()
        self.last = math.nan

    def __call__(self, points: WeightedPoints) -> Tensor:
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
    step size that falls to zero, so that the noise of the chains averages out.
    """

    steps: int = 10
    step_size: float = 0.2
    chains: int = 256
    iterations: int = 600
    learning_rate: float = 0.05
    learn_weights: bool = False
    synthetic: ClassVar[bool] = True
    uses_approximation: ClassVar[bool] = True

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> WeightedPoints:
        points = PseudoPoints.from_data(problem, size, seed, self.learn_weights)
        generator = generator_for(seed, "contrastive divergence", size)
        free = points.initial().requires_grad_()
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

    def pairs(
        self, problem: PosteriorProblem, points: WeightedPoints, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """theta+ and theta-, each (chains, size)."""
        q = problem.approximation
        target = whitened_target(problem.model, points, self._coordinates(problem, points))
        positive = q.sample(self.chains, generator)
        start = target.phi(positive)
        end = advance(Langevin(self.step_size), start, target, self.steps, generator)
        if not bool(torch.isfinite(end).all()):
            raise DivergenceError("A contrastive-divergence chain left the finite numbers; lower its step size.")
        return positive, target.theta(end)

    def _coordinates(self, problem: PosteriorProblem, points: WeightedPoints) -> Gaussian:
        q = problem.approximation
        curvature = -expected_log_joint(problem.model, q, points).hessian
        return Gaussian.from_precision(q.mean, 0.5 * (torch.cholesky_inverse(q.factor) + curvature))

    def _energy(self, problem: PosteriorProblem, points: WeightedPoints, theta: Tensor) -> Tensor:
        return -(problem.model.log_likelihood(theta, points.x, points.y) @ points.weights).mean()


# --- reverse KL -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReverseKL:
    """Minimise KL(pi_u || pi) by the covariance gradient of Bayesian pseudo-coresets (Manousakas et al. 2020).

    With r(theta) = log-likelihood of the full data minus that of u, the gradient is
        grad_u KL = - Cov_{pi_u}[grad_u (log-likelihood of u), r],
    that of Var_{pi_u}[r] / 2 with pi_u held still. Under the Gaussian q_u = N(mu, S) and to second order in theta - mu,
        Var[r] = g^T S g + tr(S H S H) / 2,   g = E_{q_u}[grad r],  H = E_{q_u}[grad^2 r],
    a least-squares problem: some L-BFGS steps on it, then q_u is found anew and the full data are passed once more. A
    round that does not lower the divergence is halved, so the result is never worse than the start.
    """

    learn_weights: bool = False
    rounds: int = 40
    steps_per_round: int = 50
    synthetic: ClassVar[bool] = True
    uses_approximation: ClassVar[bool] = False

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> WeightedPoints:
        points = PseudoPoints.from_data(problem, size, seed, self.learn_weights)
        nearest = _NearestGaussian(problem.model)
        free = points.initial()
        state = self._look(problem, nearest, points.points(free))
        for _ in range(self.rounds):
            objective = self._variance_of_residual(problem.model, *state[:3])
            proposal, _ = minimise(points, free, objective, self.steps_per_round)
            accepted = self._accept(problem, nearest, points, free, proposal, state[3])
            if accepted is None:
                break
            gain = state[3] - accepted[1][3]
            free, state = accepted
            if gain < 1e-7:
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
    ) -> tuple[Tensor, tuple[Gaussian, Tensor, Tensor, float]] | None:
        for halvings in range(10):
            candidate = free + 0.5**halvings * (proposal - free)
            state = self._look(problem, nearest, points.points(candidate))
            if state[3] < divergence:
                return candidate, state
        return None

    def _look(
        self, problem: PosteriorProblem, nearest: _NearestGaussian, points: WeightedPoints
    ) -> tuple[Gaussian, Tensor, Tensor, float]:
        """q_u, the full log-likelihood's E[grad] and E[grad^2] under it, and KL(q_u || pi) up to a constant."""
        q = nearest(points)
        joint = expected_log_joint(problem.model, q, problem.data)
        prior = problem.model.expected_log_prior(q)
        divergence = -float(joint.value) - float(q.entropy)
        return q, (joint.gradient - prior.gradient).detach(), (joint.hessian - prior.hessian).detach(), divergence

    def _variance_of_residual(self, model: SmoothModel, q: Gaussian, gradient: Tensor, hessian: Tensor) -> Objective:
        factor = q.factor

        def half_variance(points: WeightedPoints) -> Tensor:
            core = model.expected_log_likelihood(q, points.x, points.y, points.weights)
            slope = factor.T @ (gradient - core.gradient)
            bend = factor.T @ (hessian - core.hessian) @ factor
            return 0.5 * slope.square().sum() + 0.25 * bend.square().sum()

        return half_variance


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

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> WeightedPoints:
        points = PseudoPoints.from_data(problem, size, seed, self.learn_weights)
        full = problem.approximation
        start = torch.zeros_like(full.mean)
        scale = full.covariance.diagonal().sum()

        def distance(now: WeightedPoints) -> Tensor:
            nonlocal start
            laplace = differentiable_laplace(problem.model, now, start)
            start = laplace.mean.detach()
            return squared_wasserstein(full, laplace) / scale

        free, _ = minimise(points, points.initial(), distance, self.iterations)
        return _without_graph(points.points(free))


def differentiable_laplace(model: SmoothModel, points: WeightedPoints, start: Tensor) -> Gaussian:
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
