"""Coresets of real points, as the literature builds them, on one representation of the likelihoods (``vectors``).

f_i are the data's log-likelihoods as vectors, f = sum_i f_i their sum and f_w = sum_i w_i f_i that of a coreset.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import whitened_target
from pseudocoresets.kernels.chain import advance
from pseudocoresets.kernels.langevin import Langevin
from pseudocoresets.methods.moment_matching import ForwardKLLoss, Objective, forward_kl_near
from pseudocoresets.methods.posterior_problem import (
    PosteriorProblem,
    check_size,
    draw_indices,
    seeded_stream,
    uniform_points,
)
from pseudocoresets.methods.selection.vectors import LikelihoodVectors, likelihood_vectors
from pseudocoresets.models.glm import GaussianMean
from pseudocoresets.sources.gaussian_fit import expected_log_joint, fit_gaussian

Array = NDArray[np.float64]

SMALLEST_NORM = 0.01
"""Points whose log-likelihood varies less than this share of the mean are no candidates: they would weigh too much."""


@dataclass(frozen=True)
class Uniform:
    """m independent draws; a point drawn c times gets the weight c n / m."""

    synthetic: ClassVar[bool] = False
    uses_approximation: ClassVar[bool] = False

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        check_size(problem.data_size, size)
        draws = seeded_stream(seed).randint(problem.data_size, size=size)
        counts = Counter(draws.tolist())
        indices = torch.from_numpy(np.fromiter(counts, np.int64, len(counts)))
        x, y = problem.data.rows(indices)
        weights = np.fromiter(counts.values(), np.float64, len(counts)) * (problem.data_size / size)
        return Points(x, y, torch.from_numpy(weights), indices=indices)


# --- Hilbert coresets -----------------------------------------------------------------------------


class _Sum:
    """A coreset's f_w, known by its inner products with every f_i and with f; in NumPy, whose calls cost less."""

    def __init__(self, vectors: LikelihoodVectors, data_size: int) -> None:
        self.vectors = vectors
        self.with_target: Array = vectors.with_sum(torch.ones(data_size, dtype=torch.float64)).numpy()
        self.target_norm = math.sqrt(max(float(self.with_target.sum()), 0.0))
        self.norms: Array = np.sqrt(np.maximum(vectors.squared_norms.numpy(), 0.0))
        usable = self.norms > SMALLEST_NORM * self.norms.mean()
        self.inverse_norms: Array = np.divide(1.0, self.norms, out=np.zeros_like(self.norms), where=usable)
        self._penalty: Array = np.where(usable, 0.0, -np.inf)
        self.weights: dict[int, float] = {}
        self.with_current: Array = np.zeros(data_size)

    @property
    def squared_norm(self) -> float:
        return sum(weight * float(self.with_current[index]) for index, weight in self.weights.items())

    @property
    def product_with_target(self) -> float:
        return sum(weight * float(self.with_target[index]) for index, weight in self.weights.items())

    def move(self, keep: float, index: int, add: float) -> None:
        """f_w <- keep f_w + add f_index"""
        self.weights = {chosen: keep * weight for chosen, weight in self.weights.items()}
        self.weights[index] = self.weights.get(index, 0.0) + add
        self.with_current *= keep
        self.with_current += add * self.vectors.column(index).numpy()

    def rescale(self, factor: float) -> None:
        """f_w <- factor f_w"""
        self.weights = {chosen: factor * weight for chosen, weight in self.weights.items()}
        self.with_current *= factor

    def best(self, scores: Array) -> int:
        return int((scores + self._penalty).argmax())

    def chosen(self) -> tuple[Tensor, Tensor]:
        """Positions and weights of the points that weigh something."""
        kept = {index: weight for index, weight in sorted(self.weights.items()) if weight > 0}
        return torch.tensor(list(kept), dtype=torch.long), torch.tensor(list(kept.values()), dtype=torch.float64)


@dataclass(frozen=True)
class FrankWolfe:
    """Hilbert coreset by Frank-Wolfe (Campbell & Broderick 2019), then the best weights for the points it chose.

    On the polytope sum_i w_i |f_i| = sum_i |f_i|: choose the largest <f - f_w, f_i / |f_i|>, go there with the exact
    line search. ``refit`` solves min_{w >= 0} |f - f_w|^2 over the chosen points at the end and, where the posterior is
    not a Gaussian, goes on from there towards the minimum of KL(pi || pi_w) (:func:`forward_kl_weights`).
    """

    refit: bool = True
    synthetic: ClassVar[bool] = False
    uses_approximation: ClassVar[bool] = True

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        check_size(problem.data_size, size)
        x, y = whole(problem.data)
        current = _Sum(likelihood_vectors(problem.model, problem.approximation, x, y, seed=seed), len(x))
        self._choose(current, size)
        return _gather(problem, current, self.refit)

    def _choose(self, current: _Sum, size: int) -> None:
        total = float(current.norms.sum())
        for step in range(size):
            index = current.best((current.with_target - current.with_current) * current.inverse_norms)
            vertex = total / float(current.norms[index])
            if step == 0:
                current.move(0.0, index, vertex)
                continue
            share = _line_search(current, index, vertex)
            if share <= 0:
                break
            current.move(1 - share, index, share * vertex)


def _line_search(current: _Sum, index: int, vertex: float) -> float:
    """The share in [0, 1] that minimises |f - (1 - share) f_w - share vertex f_index|^2."""
    cross, squared_norm = vertex * float(current.with_current[index]), current.squared_norm
    numerator = vertex * float(current.with_target[index]) - cross - current.product_with_target + squared_norm
    denominator = (vertex * float(current.norms[index])) ** 2 - 2 * cross + squared_norm
    return min(1.0, max(0.0, numerator / denominator)) if denominator > 0 else 0.0


@dataclass(frozen=True)
class Giga(FrankWolfe):
    """Hilbert coreset by greedy iterative geodesic ascent (Campbell & Broderick 2018), then the best weights.

    On the unit sphere: from f_w / |f_w| take the geodesic towards the f_i / |f_i| whose direction agrees best with that
    of f / |f|, as far as brings it nearest; the scale of f_w is set at the end by |f| cos.
    """

    def _choose(self, current: _Sum, size: int) -> None:
        if current.target_norm == 0:
            raise DivergenceError(
                "The full log-likelihood is constant under the approximation: nothing can be matched."
            )
        towards = current.with_target * current.inverse_norms / current.target_norm
        for _ in range(size):
            norm = math.sqrt(max(current.squared_norm, 0.0)) or 1.0
            cosine = current.product_with_target / (norm * current.target_norm)
            if 1 - cosine**2 < 1e-14:
                break
            along = current.with_current * (current.inverse_norms / norm)
            room = np.maximum(1 - along * along, 1e-14)
            index = current.best((towards - cosine * along) / np.sqrt(room))
            if not self._turn(current, index, float(towards[index]), float(along[index]), cosine, norm):
                break

    def _turn(self, current: _Sum, index: int, towards: float, along: float, cosine: float, norm: float) -> bool:
        forward, back = towards - cosine * along, cosine - towards * along
        if forward <= 0 or back < 0:
            return False
        share = forward / (forward + back)
        current.move((1 - share) / norm, index, share / float(current.norms[index]))
        current.rescale(current.product_with_target / max(current.squared_norm, 1e-300))
        return True


def _gather(problem: PosteriorProblem, current: _Sum, refit: bool) -> Points:
    indices, weights = current.chosen()
    if not refit:
        return _chosen(problem, indices, weights)
    gram = current.vectors.gram(indices, indices)
    product = torch.from_numpy(current.with_target)[indices]
    points = _chosen(problem, indices, non_negative_least_squares(gram, product))
    if isinstance(problem.model, GaussianMean):
        return points
    return forward_kl_weights(problem, points, forward_kl_near(problem.model, problem.approximation), 30)


def non_negative_least_squares(gram: Tensor, product: Tensor, damping: float = 1e-12) -> Tensor:
    """argmin_{w >= 0} w^T G w / 2 - w^T b, through the Cholesky factor G = R^T R and |R w - R^-T b|^2."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import nnls

    scale = gram.diagonal().clamp_min(1e-300).rsqrt()
    scaled = (scale[:, None] * gram * scale).numpy()
    for attempt in range(8):
        try:
            factor = np.linalg.cholesky(scaled + damping * 10.0 ** (2 * attempt) * np.eye(len(scaled))).T
            break
        except np.linalg.LinAlgError:
            continue
    else:
        raise DivergenceError("The chosen points' likelihoods are not finite.")
    right = solve_triangular(factor, (scale * product).numpy(), trans="T")
    solution, _ = nnls(factor, right, maxiter=50 * len(scaled))
    return scale * torch.from_numpy(solution)


# --- sparse variational inference -----------------------------------------------------------------


@dataclass(frozen=True)
class SparseVI:
    """Greedy sparse variational inference (Campbell & Beronov 2019).

    Add the point whose log-likelihood correlates best with the residual f - f_w under the coreset's posterior pi_w,
    then lower KL(pi_w || pi) over the weights (:class:`WeightSearch`): ``rounds`` steps after each point, ``polish`` at
    the end. While the points cannot carry the full posterior, that optimum is far too narrow; ``forward`` goes on from
    there to the minimum of KL(pi || pi_w) over weights below each of ``caps`` times n / m
    (:func:`forward_kl_weights`), of which the one nearest to the full posterior by Gaussian fits is kept.
    """

    rounds: int = 2
    polish: int = 30
    forward: bool = True
    caps: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0, math.inf)
    synthetic: ClassVar[bool] = False
    uses_approximation: ClassVar[bool] = True

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        check_size(problem.data_size, size)
        search = WeightSearch(problem, seed)
        for _ in range(size):
            search.add(search.most_correlated())
            search.refine(self.rounds)
        search.refine(self.polish)
        if not self.forward:
            return search.coreset()
        chosen, full = search.coreset(drop=False), problem.approximation
        loss = ForwardKLLoss(problem.model, full)
        candidates = [forward_kl_weights(problem, chosen, loss, 100, cap) for cap in self.caps]
        return min(candidates, key=lambda each: float(kl_divergence(full, coreset_gaussian(problem, each, None))))


class WeightSearch:
    """Natural-gradient steps on the weights of chosen points, under the posterior of those points.

    The gradient of KL(pi_w || pi) is -Cov_w[f_i, f - f_w] and its natural-gradient step leads to
        v = argmin_{v >= 0} Var_w[f - f_v],   w <- (1 - t) w + t v,   t = 1, 1/2, 1/4, ... until the divergence falls,
    with pi_w by its nearest Gaussian, found anew after every step.
    """

    def __init__(self, problem: PosteriorProblem, seed: int, indices: Tensor | None = None) -> None:
        self._problem, self._seed = problem, seed
        self._x, self._y = whole(problem.data)
        self._ones = torch.ones(len(self._x), dtype=torch.float64)
        self.indices = torch.zeros(0, dtype=torch.long) if indices is None else indices
        share = len(self._x) / max(len(self.indices), 1)
        self.weights = torch.full((len(self.indices),), share, dtype=torch.float64)
        self._gaussian, self._divergence = self._look(self.weights, None)

    def add(self, index: int) -> None:
        """One more point, with weight zero."""
        self.indices = torch.cat([self.indices, torch.tensor([index])])
        self.weights = torch.cat([self.weights, torch.zeros(1, dtype=torch.float64)])

    def most_correlated(self) -> int:
        """The point, not chosen yet, that correlates best with the residual."""
        vectors = self.vectors()
        residual = vectors.with_sum(self._ones)
        if len(self.indices):
            residual = residual - vectors.with_sum(self.weights, self.indices)
        norms = vectors.squared_norms.clamp_min(0).sqrt()
        scores = torch.where(norms > SMALLEST_NORM * norms.mean(), residual / norms, -torch.inf)
        return int(scores.index_fill(0, self.indices, -torch.inf).argmax())

    def refine(self, rounds: int) -> None:
        for _ in range(rounds):
            vectors = self.vectors()
            product = vectors.with_sum(self._ones)[self.indices]
            wanted = non_negative_least_squares(vectors.gram(self.indices, self.indices), product).clamp_max(
                len(self._x)
            )
            if not self.step(wanted):
                break

    def step(self, wanted: Tensor) -> bool:
        """Go towards ``wanted`` as far as lowers the divergence; says whether it fell by more than rounding."""
        for halvings in range(8):
            weights = self.weights + 0.5**halvings * (wanted - self.weights)
            gaussian, divergence = self._look(weights, self._gaussian)
            if divergence < self._divergence:
                gain = self._divergence - divergence
                self.weights, self._gaussian, self._divergence = weights, gaussian, divergence
                return gain > 1e-6
        return False

    def vectors(self) -> LikelihoodVectors:
        """All log-likelihoods as vectors under the coreset's posterior."""
        return likelihood_vectors(self._problem.model, self._gaussian, self._x, self._y, seed=self._seed)

    def coreset(self, drop: bool = True) -> Points:
        """The points with their weights; ``drop`` leaves out those that weigh nothing."""
        if drop:
            return _chosen(self._problem, self.indices, self.weights)
        return Points(self._x[self.indices], self._y[self.indices], self.weights, indices=self.indices)

    def _look(self, weights: Tensor, start: Gaussian | None) -> tuple[Gaussian, float]:
        """The Gaussian nearest to pi_w, and KL(that || pi) up to a constant."""
        points = Points(self._x[self.indices], self._y[self.indices], weights)
        gaussian = coreset_gaussian(self._problem, points, start)
        joint = expected_log_joint(self._problem.model, gaussian, self._problem.data)
        return gaussian, -float(joint.value) - float(gaussian.entropy)


def forward_kl_weights(
    problem: PosteriorProblem, points: Points, loss: Objective, iterations: int = 200, cap: float = math.inf
) -> Points:
    """The weights that minimise KL(q || pi_w), for the Gaussian q nearest to the full posterior.

    They stay between 0 and n, or where they start, and below ``cap`` times n / m. The divergence is convex in w, with
    the gradient E_{pi_w}[f_i] - E_q[f_i]; ``loss`` is a form of it. L-BFGS with bounds; the best point is kept.
    """
    from scipy.optimize import minimize

    scale = problem.data_size / len(points)
    start = np.minimum((points.weights / scale).numpy(), cap)
    best = (math.inf, start)

    def value_and_gradient(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        weights = torch.from_numpy(vector * scale).requires_grad_()
        try:
            value = loss(replace(points, weights=weights))
        except DivergenceError:
            return 1e30, np.zeros_like(vector)
        (gradient,) = torch.autograd.grad(value, weights)
        best = min(best, (float(value.detach()), vector.copy()), key=lambda pair: pair[0])
        return float(value.detach()), gradient.numpy() * scale

    bounds = [(0.0, min(cap, max(float(len(points)), weight))) for weight in start]
    options = {"maxiter": iterations, "ftol": 1e-12}
    minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    assert points.indices is not None
    return _chosen(problem, points.indices, torch.from_numpy(best[1] * scale))


def coreset_gaussian(problem: PosteriorProblem, points: Points, start: Gaussian | None) -> Gaussian:
    """The Gaussian nearest to a coreset's posterior, from a start that may turn out to be of no use."""
    with torch.no_grad():
        if start is not None:
            try:
                return fit_gaussian(problem.model, points, start, steps=20, tolerance=1e-6)
            except DivergenceError:
                pass
        return fit_gaussian(problem.model, points, steps=20, tolerance=1e-6)


# --- weights of a uniform subsample ---------------------------------------------------------------


@dataclass(frozen=True)
class QuasiNewton:
    """A uniform subsample whose weights follow quasi-Newton steps (Naik, Rousseau & Campbell 2022).

    w <- max(0, w + t (G + tau I)^-1 b),  G_ij = Cov_w[f_i, f_j],  b_i = Cov_w[f_i, f - f_w],
    with Cov_w under the coreset's posterior, tau a small share of the mean of G's diagonal, and t = 1, 1/2, ... until
    the divergence falls.
    """

    steps: int = 30
    damping: float = 1e-3
    synthetic: ClassVar[bool] = False
    uses_approximation: ClassVar[bool] = False

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        search = WeightSearch(problem, seed, draw_indices(problem.data_size, size, seed))
        ones = torch.ones(problem.data_size, dtype=torch.float64)
        for _ in range(self.steps):
            vectors = search.vectors()
            gram = vectors.gram(search.indices, search.indices)
            slope = vectors.with_sum(ones)[search.indices] - gram @ search.weights
            damping = self.damping * gram.diagonal().mean() * torch.eye(size, dtype=torch.float64)
            wanted = search.weights + torch.linalg.solve(gram + damping, slope)
            if not search.step(wanted.clamp_min(0)):
                break
        return search.coreset()


@dataclass(frozen=True)
class CoresetMCMC:
    """Coreset MCMC (Chen & Campbell 2024): chains on the coreset posterior train the weights with their own draws.

    K chains make a Langevin step on pi_w (in coordinates whitened by a coarse Gaussian); the weights follow
        w <- max(0, w + Adam step along mean_k c_i(theta_k) [(n/S) sum_s c_s(theta_k) - sum_j w_j c_j(theta_k)]),
    with c the log-likelihoods centred over the chains and S data drawn anew at each step.
    """

    chains: int = 64
    iterations: int = 1500
    subsample: int = 512
    step_size: float = 0.1
    learning_rate: float = 0.02
    synthetic: ClassVar[bool] = False
    uses_approximation: ClassVar[bool] = False

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points:
        start = uniform_points(problem, size, seed)
        assert start.indices is not None
        gaussian = coreset_gaussian(problem, start, None)
        generator = generator_for(seed, "coreset mcmc", size)
        relative = torch.ones(size, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.Adam([relative], lr=self.learning_rate)
        theta = gaussian.sample(self.chains, generator)
        for iteration in range(self.iterations):
            optimiser.param_groups[0]["lr"] = self.learning_rate * (1 - iteration / self.iterations)
            weights = start.weights * relative.detach()
            theta, gaussian = self._move(problem, start, weights, theta, gaussian, iteration, generator)
            slope = self._slope(problem, start, weights, theta, generator)
            relative.grad = -slope * start.weights
            optimiser.step()
            relative.data.clamp_(min=0)
        return _chosen(problem, start.indices, start.weights * relative.detach())

    def _move(
        self,
        problem: PosteriorProblem,
        start: Points,
        weights: Tensor,
        theta: Tensor,
        gaussian: Gaussian,
        iteration: int,
        generator: torch.Generator,
    ) -> tuple[Tensor, Gaussian]:
        points = Points(start.x, start.y, weights)
        if iteration % 100 == 0:
            gaussian = coreset_gaussian(problem, points, None)
        target = whitened_target(problem.model, points, gaussian)
        phi = target.phi(theta)
        moved = target.theta(advance(Langevin(self.step_size), phi, target, 1, generator))
        bad = ~torch.isfinite(moved).all(-1) | (phi.square().sum(-1) > 25 * gaussian.size)
        if bool(bad.any()):
            moved[bad] = gaussian.sample(int(bad.sum()), generator)
        return moved, gaussian

    def _slope(
        self,
        problem: PosteriorProblem,
        start: Points,
        weights: Tensor,
        theta: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        n = problem.data_size
        count = min(self.subsample, n)
        x, y = problem.data.rows(torch.randint(n, (count,), generator=generator))
        with torch.no_grad():
            core = _centred(problem.model.log_likelihood(theta, start.x, start.y))
            rest = _centred(problem.model.log_likelihood(theta, x, y)).sum(-1) * (n / count)
        return core.T @ (rest - core @ weights) / (len(theta) - 1)


def _centred(values: Tensor) -> Tensor:
    return values - values.mean(0)


# --- shared ---------------------------------------------------------------------------------------


def whole(data: FullData) -> tuple[Tensor, Tensor]:
    """All the data in memory, which choosing among all points needs."""
    batches = list(data.batches())
    if len(batches) == 1:
        return batches[0]
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def _chosen(problem: PosteriorProblem, indices: Tensor, weights: Tensor) -> Points:
    kept = weights > 0
    if not bool(kept.any()):
        kept = torch.zeros_like(kept).index_fill(0, torch.tensor([0]), True)
        weights = torch.where(kept, torch.full_like(weights, problem.data_size), weights)
    x, y = problem.data.rows(indices[kept])
    return Points(x, y, weights[kept], indices=indices[kept])
