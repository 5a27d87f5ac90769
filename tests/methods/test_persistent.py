"""Persistent contrastive divergence: unbiased once its chains are, and a construction that finds the posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from methods_problems import (
    DOUBLE,
    GaussianModel,
    gaussian_kl,
    gaussian_points,
    gradients,
    network_points,
    network_problem,
)
from torch import Tensor

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import Draw
from pseudocoresets.core.state import STEP_SIZE
from pseudocoresets.methods import PersistentContrastiveDivergence, Points, Problem
from pseudocoresets.methods.persistent import ADAPTATION, PLACES

DATA_SIZE = 40
MEAN, DEVIATION = torch.tensor([0.9, -0.4], dtype=DOUBLE), 0.1
CHAINS = 400


@dataclass(frozen=True)
class GaussianSource:
    """Exact draws of N(MEAN, DEVIATION^2 I)."""

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw:
        noise = torch.randn(count, 2, generator=randomness.device, dtype=DOUBLE)
        return Draw(MEAN + DEVIATION * noise, MEAN + DEVIATION * noise)


def gaussian_problem() -> Problem:
    return Problem(Energy(GaussianModel(), DATA_SIZE), GaussianSource())


def divergence(points: Points) -> Tensor:
    """KL(pi || pi_x) in closed form."""
    variance = torch.tensor(DEVIATION**2, dtype=DOUBLE)
    return gaussian_kl(MEAN, variance, *GaussianModel().posterior(points.x, points.weights))


def test_the_gradient_is_that_of_the_forward_kl_once_the_chains_have_forgotten_their_start() -> None:
    """Chains start 20 deviations away; after 20 transitions of about a quarter turn only Monte Carlo error is left."""
    points = gaussian_points()
    method = PersistentContrastiveDivergence(
        chains=CHAINS, kernel="hmc:leapfrog_steps=4", step_size=0.28, at_once=2 * CHAINS
    )
    state: dict[str, Tensor] = {PLACES: MEAN + torch.full((CHAINS, 2), 2.0, dtype=DOUBLE)}
    estimates = []
    for iteration in range(60):
        loss = method.loss(replace(points, state=state), gaussian_problem(), Randomness.for_purpose(iteration))
        state = dict(loss.state)
        if iteration >= 20:
            estimates.append(gradients(loss.value, points))
    expected = gradients(divergence(points) / DATA_SIZE, points)
    for name in ("x", "weights"):
        values = torch.stack([each[name] for each in estimates])
        error = values.std(0) / math.sqrt(len(values))
        assert bool((error < 0.1 * expected[name].abs().max()).all()), "the test has too much noise to say anything"
        assert bool(((values.mean(0) - expected[name]).abs() < 5 * error).all()), name


@pytest.mark.parametrize("kernel", ["hmc:leapfrog_steps=4", "langevin"])
def test_descending_it_finds_the_posterior(kernel: str) -> None:
    """The family holds it: with total weight w the precision is w / spread^2 + 1, and the points move the mean."""
    points = gaussian_points(total=(DEVIATION**-2 - 1) * GaussianModel().spread ** 2).detached()
    x, state = points.x.clone().requires_grad_(), {}
    method = PersistentContrastiveDivergence(chains=50, kernel=kernel, step_size=0.2, steps=2, at_once=100)
    optimiser = torch.optim.Adam([x], 0.05)
    for iteration in range(120):
        now = replace(points, x=x, state=state)
        loss = method.loss(now, gaussian_problem(), Randomness.for_purpose(iteration))
        state = dict(loss.state)
        optimiser.zero_grad()
        loss.value.backward()
        optimiser.step()
    assert float(divergence(replace(points, x=x.detach()))) < 0.01 * float(divergence(points))


def test_chains_go_on_where_they_were_and_the_step_size_follows_the_acceptance() -> None:
    problem, points = network_problem(chains=2), network_points()
    method = PersistentContrastiveDivergence(chains=2, kernel="hmc:leapfrog_steps=3", step_size=0.2)
    first = method.loss(points, problem, Randomness.for_purpose(0))
    acceptance = float(first.terms["acceptance"])
    assert float(first.state[STEP_SIZE]) == pytest.approx(0.2 * math.exp(ADAPTATION * (acceptance - 0.8)), rel=1e-12)
    still = replace(method, step_size=1e-9)
    carried = replace(points, state={PLACES: first.state[PLACES]})
    second = still.loss(carried, problem, Randomness.for_purpose(1))
    torch.testing.assert_close(second.state[PLACES], first.state[PLACES], rtol=1e-6, atol=1e-6)
    draw = problem.source.draw(2, None, 0, Randomness.for_purpose(1))
    energies = [
        problem.energy.per_datum(at, points.x, points.y, points.weights).mean()
        for at in (draw.later, second.state[PLACES])
    ]
    torch.testing.assert_close(second.value, energies[0] - energies[1], rtol=1e-9, atol=1e-12)


def test_a_kernel_that_takes_every_step_keeps_its_step_size() -> None:
    method = PersistentContrastiveDivergence(chains=2, kernel="langevin", step_size=0.03)
    loss = method.loss(network_points(), network_problem(chains=2), Randomness.for_purpose(0))
    assert float(loss.state[STEP_SIZE]) == 0.03
    assert "acceptance" not in loss.terms


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="chains >= 1"):
        PersistentContrastiveDivergence(chains=0)
    with pytest.raises(InputError, match="step size"):
        PersistentContrastiveDivergence(step_size=0.0)
