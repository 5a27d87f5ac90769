"""Coreset MCMC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import Array, whitened_target
from pseudocoresets.kernels import Langevin, advance
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.selection.uniform import uniform_points
from pseudocoresets.methods.selection.weights import chosen_points, coreset_gaussian
from pseudocoresets.methods.solver import Solver, smooth_model

FIRST_DECAY, SECOND_DECAY, SMALLEST_SCALE = 0.9, 0.999, 1e-8
BETWEEN_TESTS = 30
"""Steps between two tests of whether chains are hot."""

StepRule = Callable[[Tensor, Tensor], Tensor]
"""The change of values, given them and a gradient."""


@dataclass(frozen=True)
class CoresetMCMC(Solver):
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

    name: ClassVar[str] = "coreset-mcmc"
    needs_source: ClassVar[bool] = False

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        start = uniform_points(problem, size, seed)
        assert start.indices is not None
        gaussian = coreset_gaussian(smooth_model(problem), start, None)
        generator = generator_for(seed, "coreset mcmc", size)
        relative = torch.ones(size, dtype=torch.float64)
        change = self._rule(size)
        theta = self._begun(problem, start, gaussian, generator)
        for iteration in range(self.iterations):
            weights = start.weights * relative
            theta, gaussian = self._move(problem, start, weights, theta, gaussian, iteration, generator)
            slope = self._slope(problem, start, weights, theta, generator)
            relative = (relative + change(relative, -slope * start.weights)).clamp_min(0)
        return chosen_points(problem, start.indices, start.weights * relative)

    def _rule(self, size: int) -> StepRule:
        """How the weights, in units of n / m, follow from gradients."""
        return AnnealedAdam(size, self.learning_rate, self.iterations)

    def _begun(self, problem: Problem, start: Points, gaussian: Gaussian, generator: torch.Generator) -> Tensor:
        """Where the chains are before the weights begin to move."""
        return gaussian.sample(self.chains, generator)

    def _move(
        self,
        problem: Problem,
        start: Points,
        weights: Tensor,
        theta: Tensor,
        gaussian: Gaussian,
        iteration: int,
        generator: torch.Generator,
    ) -> tuple[Tensor, Gaussian]:
        points = Points(start.x, start.y, weights)
        if iteration % 100 == 0:
            gaussian = coreset_gaussian(smooth_model(problem), points, None)
        target = whitened_target(smooth_model(problem), points, gaussian)
        phi = target.phi(theta)
        moved = target.theta(advance(Langevin(self.step_size), phi, target, 1, generator))
        bad = ~torch.isfinite(moved).all(-1) | (phi.square().sum(-1) > 25 * gaussian.size)
        if bool(bad.any()):
            moved[bad] = gaussian.sample(int(bad.sum()), generator)
        return moved, gaussian

    def _slope(
        self,
        problem: Problem,
        start: Points,
        weights: Tensor,
        theta: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        n = problem.energy.data_size
        count = min(self.subsample, n)
        x, y = problem.full_data().rows(torch.randint(n, (count,), generator=generator))
        with torch.no_grad():
            core = _centred(smooth_model(problem).log_likelihood(theta, start.x, start.y))
            rest = _centred(smooth_model(problem).log_likelihood(theta, x, y)).sum(-1) * (n / count)
        return core.T @ (rest - core @ weights) / (len(theta) - 1)


@dataclass(frozen=True)
class TuningFreeCoresetMCMC(CoresetMCMC):
    """Coreset MCMC without a learning rate (Hot DoG: Chen, Huggins & Campbell 2024).

    The chains move at fixed weights until they are *hot*: in the last two thirds of the potential's trace the means
    differ by less than half of the scatter around a line, in the median chain. From there, in step t and coordinate by
    coordinate,

        w <- max(0, w - d m / sqrt(t v))

    with m and v the corrected moving averages of the gradient and its
    square and d that of the largest distance from the first weights (``first_distance`` in the first step).
    """

    first_distance: float = 1e-3
    longest_warmup: int = 1000

    name: ClassVar[str] = "coreset-mcmc-free"

    def _rule(self, size: int) -> StepRule:
        return HotDoG(size, self.first_distance)

    def _begun(self, problem: Problem, start: Points, gaussian: Gaussian, generator: torch.Generator) -> Tensor:
        theta, potentials = super()._begun(problem, start, gaussian, generator), []
        target = whitened_target(smooth_model(problem), start, gaussian)
        earliest = max(3 * gaussian.size, BETWEEN_TESTS)
        for iteration in range(1, self.longest_warmup + 1):
            theta, _ = self._move(problem, start, start.weights, theta, gaussian, 1, generator)
            potentials.append(target.potential(target.phi(theta)).numpy())
            if iteration >= earliest and iteration % BETWEEN_TESTS == 0 and hot(np.stack(potentials, 1)):
                break
        return theta


def hot(traces: Array) -> bool:
    """Whether potentials (chains, steps) have settled: means of the last two thirds apart by half their scatter."""
    third = traces.shape[1] // 3
    time = np.arange(third) - (third - 1) / 2
    parts = traces[:, -2 * third : -third], traces[:, -third:]
    scatters = []
    for part in parts:
        centred = part - part.mean(1, keepdims=True)
        residual = centred - np.outer(centred @ time / (time @ time), time)
        scatters.append(np.sqrt(np.square(residual).sum(1) / (third - 2)))
    apart = np.abs(parts[0].mean(1) - parts[1].mean(1))
    return bool(np.median(apart / np.maximum(np.maximum(*scatters), 1e-300)) <= 0.5)


class AnnealedAdam:
    """Adam, with a learning rate that falls linearly to zero."""

    def __init__(self, size: int, learning_rate: float, steps: int) -> None:
        self._averages, self._learning_rate, self._steps = MovingAverages(size), learning_rate, steps

    def __call__(self, values: Tensor, gradient: Tensor) -> Tensor:
        rate = self._learning_rate * (1 - self._averages.steps / self._steps)
        first, second = self._averages(gradient)
        return -rate * first / (second.sqrt() + SMALLEST_SCALE)


class HotDoG:
    """Steps as long as the distance gone so far over the root of the sum of squared gradients."""

    def __init__(self, size: int, first_distance: float) -> None:
        self._averages = MovingAverages(size)
        self._first = first_distance
        self._origin: Tensor | None = None
        self._distance = torch.zeros(size, dtype=torch.float64)

    def __call__(self, values: Tensor, gradient: Tensor) -> Tensor:
        first, second = self._averages(gradient)
        steps = self._averages.steps
        if self._origin is None:
            self._origin, distance = values.clone(), torch.full_like(values, self._first)
        else:
            farthest = torch.maximum((values - self._origin).abs(), self._distance)
            self._distance = FIRST_DECAY * self._distance + (1 - FIRST_DECAY) * farthest
            distance = self._distance / (1 - FIRST_DECAY**steps)
        return -distance * first / ((steps * second).sqrt() + SMALLEST_SCALE)


class MovingAverages:
    """Of gradients and their squares, corrected for beginning at zero."""

    def __init__(self, size: int) -> None:
        self.steps = 0
        self._first, self._second = torch.zeros(2, size, dtype=torch.float64)

    def __call__(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        self.steps += 1
        self._first = FIRST_DECAY * self._first + (1 - FIRST_DECAY) * gradient
        self._second = SECOND_DECAY * self._second + (1 - SECOND_DECAY) * gradient.square()
        return self._first / (1 - FIRST_DECAY**self.steps), self._second / (1 - SECOND_DECAY**self.steps)


def _centred(values: Tensor) -> Tensor:
    return values - values.mean(0)
