"""Coresets of real points after recent papers: what each paper claims, in small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.core.targets import all_points
from pseudocoresets.methods import FrankWolfe, Giga, HardThresholding, Problem, SparseHamiltonianFlow, row_problem
from pseudocoresets.methods.selection.coreset_mcmc import (
    AnnealedAdam,
    CoresetMCMC,
    HotDoG,
    TuningFreeCoresetMCMC,
    hot,
)
from pseudocoresets.methods.selection.hamiltonian_flow import Flow
from pseudocoresets.methods.selection.hilbert import _Sum
from pseudocoresets.methods.selection.uniform import uniform_points
from pseudocoresets.methods.selection.vectors import ExplicitVectors, likelihood_vectors
from pseudocoresets.methods.solver import nearest_gaussian, smooth_model
from pseudocoresets.models import FunctionModel, GaussianMean, LogisticRegression
from pseudocoresets.sources.gaussian_fit import fit_gaussian

DOUBLE = torch.float64


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def gaussian_problem(dimension: int = 10, count: int = 300) -> Problem:
    return row_problem(
        GaussianMean(dimension=dimension), Rows(normal(count, dimension, seed=0) + 1, torch.zeros(count))
    )


def logistic_problem(dimension: int = 4, count: int = 500) -> Problem:
    x = normal(count, dimension, seed=1)
    y = torch.rand(count, generator=torch.Generator().manual_seed(2), dtype=DOUBLE) < torch.sigmoid(x.sum(1))
    return row_problem(LogisticRegression(dimension), Rows(x, y))


def squared_error(problem: Problem, points: Points) -> float:
    """|f - f_w|^2 of the likelihood vectors."""
    every = all_points(problem.full_data())
    vectors = likelihood_vectors(smooth_model(problem), nearest_gaussian(problem), every.x, every.y)
    assert points.indices is not None
    rest = torch.ones(len(every), dtype=DOUBLE).index_add(0, points.indices, -points.weights)
    return float(rest @ vectors.with_sum(rest))


def divergence(problem: Problem, points: Points) -> float:
    full, coreset = (fit_gaussian(smooth_model(problem), data) for data in (problem.full_data(), points))
    return float(kl_divergence(full, coreset))


@pytest.mark.parametrize("model", ["gaussian", "logistic"])
def test_hard_thresholding_beats_greedy_and_convex_coresets_in_their_own_objective(model: str) -> None:
    """The paper's claim, for more points than parameters."""
    problem, size = (gaussian_problem(30), 50) if model == "gaussian" else (logistic_problem(), 15)
    errors = {
        kind: squared_error(problem, kind(refit=False).solve(problem, size))
        for kind in (FrankWolfe, Giga, HardThresholding)
    }
    assert errors[HardThresholding] < 0.5 * min(errors[FrankWolfe], errors[Giga])


def test_hard_thresholding_recovers_sparse_weights() -> None:
    """What its theory promises of incoherent vectors: a target made of eight of a hundred random vectors is found."""
    vectors = ExplicitVectors(normal(100, 60, seed=3))
    true = torch.zeros(100, dtype=DOUBLE)
    true[::13] = 1 + torch.arange(8, dtype=DOUBLE)
    current = _Sum(vectors, 100)
    current.with_target = vectors.with_sum(true).numpy()
    HardThresholding(tolerance=1e-9)._choose(current, 8)
    found = torch.zeros(100, dtype=DOUBLE)
    for index, weight in current.weights.items():
        found[index] = weight
    torch.testing.assert_close(found, true, atol=1e-5, rtol=0)


def test_adam_is_that_of_torch() -> None:
    values = torch.tensor([1.0, -2.0], dtype=DOUBLE, requires_grad=True)
    optimiser = torch.optim.Adam([values], lr=0.1)
    rule, mine = AnnealedAdam(2, 0.1, 10), values.detach().clone()
    for step in range(10):
        optimiser.param_groups[0]["lr"] = 0.1 * (1 - step / 10)
        values.grad = 2 * values.detach() + step
        mine = mine + rule(mine, 2 * mine + step)
        optimiser.step()
    torch.testing.assert_close(mine, values.detach())


@pytest.mark.parametrize("first_distance", [1e-6, 1e-3, 1e-1])
def test_hot_dog_finds_a_minimum_whatever_its_first_step_and_units(first_distance: float) -> None:
    """sum_i c_i (v_i - 3)^2 from 1 with curvatures from 1e-4 to 1e4."""
    curvature = torch.tensor([1e-4, 1.0, 1e4], dtype=DOUBLE)
    rule, values = HotDoG(3, first_distance), torch.ones(3, dtype=DOUBLE)
    for _ in range(3000):
        values = values + rule(values, 2 * curvature * (values - 3))
    torch.testing.assert_close(values, torch.full((3,), 3.0, dtype=DOUBLE), atol=0.02, rtol=0)


def test_chains_are_hot_once_their_potentials_settle() -> None:
    stream = np.random.default_rng(0)
    noise = stream.standard_normal((8, 300))
    assert hot(noise)
    assert not hot(noise - 0.05 * np.arange(300))
    assert hot(noise + 50 * np.exp(-np.arange(300) / 10))


def test_tuning_free_coreset_mcmc_needs_no_rate_where_adam_does() -> None:
    """The paper's claim: near the best of Adam for every first step; Adam with a bad rate is far from it."""
    problem = gaussian_problem(dimension=5, count=200)
    free = [
        divergence(problem, TuningFreeCoresetMCMC(iterations=600, first_distance=first).solve(problem, 30))
        for first in (1e-4, 1e-2)
    ]
    slow = divergence(problem, CoresetMCMC(iterations=600, learning_rate=2e-4).solve(problem, 30))
    assert max(free) < 0.1 * slow
    assert max(free) < 0.02 * divergence(problem, uniform_points(problem, 30, 0))


def test_a_flow_changes_volume_by_what_it_says() -> None:
    """log |det| of the whole map by autograd, at refreshments held where a batch puts them, for one of its samples."""
    start = uniform_points(logistic_problem(dimension=2), 8, 0)
    flow = Flow(LogisticRegression(2), start, refreshments=2, leapfrog_steps=3, step_size=0.3)
    phi, momentum = flow.noise(40, torch.Generator().manual_seed(0))
    scales = []

    def moved(state: Tensor) -> Tensor:
        """The map of one sample with the batch's moments held fixed, written again from the definition."""
        position, speed = state[:2][None], state[2:][None]
        others, speeds = phi, momentum
        for _ in range(2):
            mean, scale = speeds.mean(0).detach(), speeds.std(0).detach()
            scales.append(scale)
            position, speed = flow._leap(position, (speed - mean) / scale)
            others, speeds = flow._leap(others, (speeds - mean) / scale)
        return torch.cat([flow._gaussian.whitened(flow._gaussian.unwhitened(position))[0], speed[0]])

    jacobian = torch.autograd.functional.jacobian(moved, torch.cat([phi[0], momentum[0]]))
    expected = flow(phi, momentum)[2]
    torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], expected.detach())
    torch.testing.assert_close(-torch.stack(scales[:2]).log().sum(), expected.detach())


def test_a_flow_of_any_model_is_that_of_its_closed_form() -> None:
    start = uniform_points(logistic_problem(dimension=2), 8, 0)
    closed = LogisticRegression(2)
    own = FunctionModel(closed.log_likelihood, closed.log_prior, 2)
    forces = []
    for model in (closed, own):
        flow = Flow(model, start, 2, 3, 0.3)
        phi, _ = flow.noise(5, torch.Generator().manual_seed(0))
        forces.append(flow._gaussian.whitened(flow._gaussian.mean + flow._force(phi) @ flow._gaussian.factor.T))
    torch.testing.assert_close(forces[0], forces[1], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("make", [gaussian_problem, logistic_problem])
def test_sparse_flows_lead_to_the_posterior(make: object) -> None:
    """The paper's synthetic Gaussian and a logistic regression: weights and the flow's own samples come near."""
    problem: Problem = make()  # type: ignore[operator]
    solver = SparseHamiltonianFlow(iterations=200)
    points = solver.solve(problem, 50)
    before = divergence(problem, uniform_points(problem, 50, 0))
    assert divergence(problem, points) < 0.1 * before
    flow = Flow(smooth_model(problem), points, solver.refreshments, solver.leapfrog_steps, solver.step_size)
    with torch.no_grad():
        theta, momentum, _ = flow(*flow.noise(2000, torch.Generator().manual_seed(1)))
    assert float(kl_divergence(Gaussian.fit(theta), nearest_gaussian(problem))) < 0.2 * before
    assert float(momentum.mean(0).abs().max()) < 0.3
