"""Hilbert coresets: real points whose weighted log-likelihoods add up to nearly that of all the data (``vectors``).

f_i are the data's log-likelihoods as vectors, f = sum_i f_i their sum and f_w = sum_i w_i f_i that of a coreset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.core.targets import Array, all_points
from pseudocoresets.methods.nearby import forward_kl_near
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.selection.uniform import uniform_points
from pseudocoresets.methods.selection.vectors import LikelihoodVectors, VectorModel, likelihood_vectors
from pseudocoresets.methods.selection.weights import (
    SMALLEST_NORM,
    chosen_points,
    forward_kl_weights,
    non_negative_least_squares,
)
from pseudocoresets.methods.solver import Solver, check_size, nearest_gaussian, smooth_model

MOST_DATA, MOST_POINTS = 100_000, 1000
"""Of Hilbert coresets that other methods start from or are measured against."""


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
class FrankWolfe(Solver):
    """Hilbert coreset by Frank-Wolfe (Campbell & Broderick 2019), then the best weights for the points it chose.

    Each step goes towards a vertex of the polytope sum_i w_i |f_i| = s, with s = sum_i |f_i|, by the exact line search:

        i = argmax_i < f - f_w, f_i > / |f_i|
        t = argmin_{t in [0, 1]} |f - (1 - t) f_w - t (s / |f_i|) f_i|^2
        w <- (1 - t) w + t (s / |f_i|) e_i

    with e_i the i-th unit vector; the first step goes all the way. ``refit`` solves min_{w >= 0} |f - f_w|^2 over the
    chosen points at the end and, where the posterior is not a Gaussian, goes on from there towards the minimum of
    KL(pi || pi_w) (:func:`forward_kl_weights`).
    """

    refit: bool = True

    name: ClassVar[str] = "frank-wolfe"
    is_baseline: ClassVar[bool] = True

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        check_size(problem.energy.data_size, size)
        every, model = all_points(problem.full_data()), smooth_model(problem)
        vectors = likelihood_vectors(model, nearest_gaussian(problem), every.x, every.y, seed=seed)
        current = _Sum(vectors, len(every))
        if current.target_norm > 0:
            self._choose(current, size)
        if not current.weights:
            raise DivergenceError(
                "The full log-likelihood is constant under the approximation: nothing can be matched."
            )
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
    of f / |f|, as far as brings it nearest. With the cosines c of f_w and f, a_i of f_i and f_w, and b_i of f_i and f,

        i = argmax_i (b_i - c a_i) / sqrt(1 - a_i^2)
        t = (b_i - c a_i) / (b_i - c a_i + c - b_i a_i)
        w <- (1 - t) w / |f_w| + t e_i / |f_i|,     then     w <- w < f, f_w > / |f_w|^2

    with e_i the i-th unit vector.
    """

    name: ClassVar[str] = "giga"

    def _choose(self, current: _Sum, size: int) -> None:
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


def hilbert_coreset(problem: Problem, size: int, seed: int, solver: FrankWolfe | None = None) -> Points:
    """A Hilbert coreset of at most ``size`` points, by :class:`Giga` unless told otherwise, for little time.

    Of more than ``MOST_DATA`` data a uniform subsample of that many is used, and at most ``MOST_POINTS`` are chosen.
    """
    solver, size = solver or Giga(), min(size, MOST_POINTS)
    if problem.energy.data_size <= MOST_DATA:
        return solver.solve(problem, size, seed)
    some = uniform_points(problem, MOST_DATA, seed)
    assert some.indices is not None
    data, energy = Rows(some.x, some.y), replace(problem.energy, data_size=MOST_DATA)
    found = solver.solve(replace(problem, energy=energy, real_data=lambda: data), size, seed)
    assert found.indices is not None
    return replace(found, weights=float(some.weights[0]) * found.weights, indices=some.indices[found.indices])


def _gather(problem: Problem, current: _Sum, refit: bool) -> Points:
    indices, weights = current.chosen()
    if not refit:
        return chosen_points(problem, indices, weights)
    gram = current.vectors.gram(indices, indices)
    product = torch.from_numpy(current.with_target)[indices]
    points = chosen_points(problem, indices, non_negative_least_squares(gram, product))
    model = smooth_model(problem)
    if isinstance(model, VectorModel):  # the vectors are exact, and so are these weights
        return points
    return forward_kl_weights(problem, points, forward_kl_near(model, nearest_gaussian(problem)), 30)
