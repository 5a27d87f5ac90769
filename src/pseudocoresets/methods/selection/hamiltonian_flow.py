"""Sparse Hamiltonian flows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.energy import DifferentiatedModel
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.selection.uniform import uniform_points
from pseudocoresets.methods.selection.weights import chosen_points, coreset_gaussian
from pseudocoresets.methods.solver import Solver, smooth_model
from pseudocoresets.models.expectation import SmoothModel


@dataclass(frozen=True)
class SparseHamiltonianFlow(Solver):
    """Sparse Hamiltonian flows (Chen, Xu & Campbell 2022): weights whose Hamiltonian flow leads to the full posterior.

    A uniform subsample. theta_0 from a Gaussian and rho_0 ~ N(0, I) pass ``refreshments`` times through
        rho <- (rho - m_r) / s_r,   then ``leapfrog_steps`` steps of  d theta = rho,  d rho = grad log pi_w(theta),
    in coordinates whitened by the Gaussian nearest to the start's posterior. Only the first changes volume, so that,
    with S data drawn anew in each iteration and up to a constant, Adam maximises
        E[(n/S) sum_s log p(y_s | x_s, theta_R) + log pi0(theta_R) - |rho_R|^2 / 2] - sum_ri log s_ri
    over weights and step sizes. The paper learns m and s too; here they are the momenta's own means and deviations,
    differentiated, so that it is the weights that must lead the flow to the posterior.
    """

    refreshments: int = 3
    leapfrog_steps: int = 4
    iterations: int = 400
    samples: int = 64
    subsample: int = 512
    step_size: float = 0.3
    learning_rate: float = 0.1

    name: ClassVar[str] = "hamiltonian-flow"
    needs_source: ClassVar[bool] = False

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        start = uniform_points(problem, size, seed)
        assert start.indices is not None
        generator = generator_for(seed, "hamiltonian flow", size)
        flow = Flow(smooth_model(problem), start, self.refreshments, self.leapfrog_steps, self.step_size)
        optimiser = torch.optim.Adam(flow.learned, lr=self.learning_rate)
        for iteration in range(self.iterations):
            optimiser.param_groups[0]["lr"] = self.learning_rate * (1 - iteration / self.iterations)
            bound = self._bound(problem, flow, generator)
            if bool(torch.isfinite(bound)):
                optimiser.zero_grad()
                (-bound).backward()
                optimiser.step()
        return chosen_points(problem, start.indices, flow.weights.detach())

    def _bound(self, problem: Problem, flow: Flow, generator: torch.Generator) -> Tensor:
        """The evidence lower bound on fresh samples and a fresh batch of data, up to a constant."""
        n = problem.energy.data_size
        count = min(self.subsample, n)
        x, y = problem.full_data().rows(torch.randint(n, (count,), generator=generator))
        theta, momentum, log_volume = flow(*flow.noise(self.samples, generator))
        model = smooth_model(problem)
        joint = model.log_likelihood(theta, x, y).sum(-1) * (n / count) + model.log_prior(theta)
        return (joint - 0.5 * momentum.square().sum(-1)).mean() + log_volume


class Flow:
    """Hamiltonian dynamics of a weighted subsample with refreshments of the momentum between."""

    def __init__(
        self, model: SmoothModel, start: Points, refreshments: int, leapfrog_steps: int, step_size: float
    ) -> None:
        self._model, self._start = model, start
        self._refreshments, self._leapfrog_steps = refreshments, leapfrog_steps
        self._gaussian = coreset_gaussian(model, start, None)
        steps = torch.full((self._gaussian.size,), step_size, dtype=torch.float64)
        self._log_weights = torch.zeros(len(start), dtype=torch.float64, requires_grad=True)
        self._log_steps = steps.log().requires_grad_()

    @property
    def learned(self) -> list[Tensor]:
        return [self._log_weights, self._log_steps]

    @property
    def weights(self) -> Tensor:
        return self._start.weights * self._log_weights.exp()

    def noise(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Positions and momenta (count, size) at which the flow begins."""
        position, momentum = torch.randn(2, count, self._gaussian.size, generator=generator, dtype=torch.float64)
        return position, momentum

    def __call__(self, phi: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """theta and momentum at the end, and the logarithm of how much the flow expands volume."""
        log_volume = torch.zeros((), dtype=phi.dtype)
        for _ in range(self._refreshments):
            scale = momentum.std(0)
            phi, momentum = self._leap(phi, (momentum - momentum.mean(0)) / scale)
            log_volume = log_volume - scale.log().sum()
        return self._gaussian.unwhitened(phi), momentum, log_volume

    def _leap(self, phi: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
        step = self._log_steps.exp()
        momentum = momentum + 0.5 * step * self._force(phi)
        for last in [False] * (self._leapfrog_steps - 1) + [True]:
            phi = phi + step * momentum
            momentum = momentum + (0.5 if last else 1.0) * step * self._force(phi)
        return phi, momentum

    def _force(self, phi: Tensor) -> Tensor:
        """grad_phi log pi_w, differentiable in phi and the weights."""
        theta, model, points = self._gaussian.unwhitened(phi), self._model, self._start
        if isinstance(model, DifferentiatedModel):
            slope = model.log_likelihood_and_gradient(theta, points.x, points.y, self.weights)[1]
            return (slope + model.log_prior_gradient(theta)) @ self._gaussian.factor
        with torch.enable_grad():
            theta = theta if theta.requires_grad else theta.requires_grad_()
            joint = model.log_likelihood(theta, points.x, points.y) @ self.weights + model.log_prior(theta)
            (slope,) = torch.autograd.grad(joint.sum(), theta, create_graph=True)
        return slope @ self._gaussian.factor
