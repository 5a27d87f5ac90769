"""Coreset MCMC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.core.targets import whitened_target
from pseudocoresets.kernels import Langevin, advance
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.selection.uniform import uniform_points
from pseudocoresets.methods.selection.weights import chosen_points, coreset_gaussian
from pseudocoresets.methods.solver import Solver, full_data, smooth_model


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
        return chosen_points(problem, start.indices, start.weights * relative.detach())

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
        x, y = full_data(problem).rows(torch.randint(n, (count,), generator=generator))
        with torch.no_grad():
            core = _centred(smooth_model(problem).log_likelihood(theta, start.x, start.y))
            rest = _centred(smooth_model(problem).log_likelihood(theta, x, y)).sum(-1) * (n / count)
        return core.T @ (rest - core @ weights) / (len(theta) - 1)


def _centred(values: Tensor) -> Tensor:
    return values - values.mean(0)
