"""Contrastive divergence: its estimator, and what it does where both posteriors are known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocoresets.backends.plain import chain_augmentation
from pseudocoresets.core.energy import Energy, uniform_weights
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import Draw
from pseudocoresets.data.augmentation import Augmentation
from pseudocoresets.kernels import KERNELS
from pseudocoresets.methods import ContrastiveDivergence, Points, Problem
from pseudocoresets.methods.contrastive import Phases, step_size_gradient
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network

SHAPE, CLASSES, POINTS, DATA_SIZE, EPOCHS = (1, 8, 8), 3, 6, 300, 5


class Snapshots:
    """A source of parameters that remembers what it was asked and what it gave."""

    def __init__(self, network: Network) -> None:
        self.trajectories = torch.stack([network.initialise(10 + epoch, chains=4) for epoch in range(EPOCHS)], 1)
        self.draws: list[tuple[int, int | None, int, Draw]] = []

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw:
        experts = [randomness.host.randrange(4) for _ in range(count)]
        draw = Draw(self.trajectories[experts, 1], self.trajectories[experts, 1 + expert_epochs])
        self.draws.append((count, max_start_epoch, expert_epochs, draw))
        return draw


def problem_and_points(augmentation: Augmentation | None) -> tuple[Problem, Points, Network]:
    network = build_network("mlp:depth=1,width=5", SHAPE, CLASSES)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(POINTS, *SHAPE, generator=generator).requires_grad_()
    y = torch.randint(CLASSES, (POINTS,), generator=generator)
    weights = (torch.rand(POINTS, generator=generator) * 100).requires_grad_()
    energy = Energy(Classifier(network), DATA_SIZE, temperature=0.5)
    return Problem(energy, Snapshots(network), augmentation=augmentation), Points(x, y, weights), network


def cross_entropy_energy(network: Network, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """E(x, theta) / n by an ordinary module, one point at a time."""
    module = network.module(theta)
    total = torch.zeros(())
    for i in range(len(x)):
        total = total + weights[i] * torch.nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
    return total / DATA_SIZE


@pytest.mark.parametrize("augmented", [False, True], ids=["plain", "augmented"])
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("expert_epochs", [0, 2])
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_the_gradient_is_the_estimator_with_the_negative_parameters_held_fixed(
    augmented: bool, chains: int, expert_epochs: int, sigma: float
) -> None:
    """Everything the method draws is drawn again here by hand, and the two energies are differentiated one by one."""
    augmentation = Augmentation(("color", "crop", "rotate")) if augmented else None
    problem, points, network = problem_and_points(augmentation)
    method = ContrastiveDivergence(expert_epochs, 4, chains, steps=3, step_size=0.02, sigma=sigma)
    loss = method.loss(points, problem, Randomness.for_purpose(7, "test"))
    gradients = torch.autograd.grad(loss.value, [points.x, points.weights])

    randomness = Randomness.for_purpose(7, "test")
    draw = problem.source.draw(chains, 4, expert_epochs, randomness)  # type: ignore[union-attr]
    start = draw.start + (sigma * torch.randn(draw.start.shape, generator=randomness.device) if sigma else 0)
    positive = start
    if expert_epochs:
        positive = draw.later + (sigma * torch.randn(draw.later.shape, generator=randomness.device) if sigma else 0)
    x, weights = points.x.detach(), points.weights.detach()
    theta = start.clone()
    for _ in range(method.steps):
        seen = augmentation.draw(POINTS, randomness)(x) if augmentation else x
        theta = theta.requires_grad_()
        potential = problem.energy.potential(theta, seen, points.y, weights).sum()
        (slope,) = torch.autograd.grad(potential, theta)
        noise = torch.randn(theta.shape, generator=randomness.device)
        scale = math.sqrt(2 * method.step_size * problem.energy.temperature / DATA_SIZE)
        theta = (theta - method.step_size * slope + scale * noise).detach()
    transformation = augmentation.draw(POINTS, randomness) if augmentation else lambda images: images

    leaf_x, leaf_weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    expected = torch.zeros(())
    for up, down in zip(positive, theta, strict=True):
        for sign, parameters in ((1, up), (-1, down)):
            seen = transformation(leaf_x)
            expected = expected + sign * cross_entropy_energy(network, parameters, seen, points.y, leaf_weights)
    expected = expected / chains
    torch.testing.assert_close(loss.value, expected, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(expected, [leaf_x, leaf_weights])
    assert float(wanted[0].abs().max()) > 1e-4, "a gradient of nothing would agree with anything"
    for found, right in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3 * float(right.abs().max()))
    difference = float(loss.terms["positive"] - loss.terms["negative"])
    assert difference == pytest.approx(float(loss.value.detach()), abs=1e-6)


def test_experts_are_asked_for_what_the_settings_say() -> None:
    problem, points, _ = problem_and_points(None)
    ContrastiveDivergence(2, max_start_epoch=1, chains=3, steps=1).loss(points, problem, Randomness.for_purpose(0, "t"))
    count, max_start_epoch, expert_epochs, _ = problem.source.draws[0]  # type: ignore[union-attr]
    assert (count, max_start_epoch, expert_epochs) == (3, 1, 2)


def test_the_chain_leaves_no_graph() -> None:
    problem, points, _ = problem_and_points(None)
    phases = ContrastiveDivergence(steps=2).sample_phases(points, problem, Randomness.for_purpose(0, "t"))
    assert not any(phase.requires_grad for phase in phases)


@pytest.mark.parametrize("step_size", [1e-4, 10.0])
def test_a_learned_step_size_grows_where_the_chain_falls_short_and_shrinks_where_it_overshoots(
    step_size: float,
) -> None:
    """A chain that shrinks theta by eta, and an expert that has shrunk it to a half."""
    start = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    lead = 0.5 * start
    phases = Phases(start, start - lead, start - step_size * start)
    slope = step_size_gradient(phases, torch.tensor(step_size))
    expected = (step_size - 0.5) / 0.5**2  # d/deta of (eta - 1/2)^2 / (2 (1/2)^2)
    torch.testing.assert_close(slope, torch.tensor(expected), rtol=1e-4, atol=0)


def test_the_learned_step_size_is_the_chains_and_leaves_the_points_gradient_alone() -> None:
    problem, points, _ = problem_and_points(None)
    extra = torch.tensor(0.05, requires_grad=True)
    learned = ContrastiveDivergence(2, 4, steps=3, step_size=0.01, step_size_learning_rate=1e-5)
    fixed = ContrastiveDivergence(2, 4, steps=3, step_size=0.05)
    assert learned.hyperparameters()["step_size"] == (0.01, 1e-5)
    with_extra = Points(points.x, points.y, points.weights, {"step_size": extra})
    ours = learned.loss(with_extra, problem, Randomness.for_purpose(7, "test"))
    theirs = fixed.loss(points, problem, Randomness.for_purpose(7, "test"))
    gradients = torch.autograd.grad(ours.value, [points.x, extra])
    assert torch.equal(gradients[0], torch.autograd.grad(theirs.value, points.x)[0])
    assert torch.equal(ours.value.detach(), theirs.value.detach())
    assert float(gradients[1]) != 0


def test_samplers_that_accept_or_reject_see_one_augmentation() -> None:
    augmentation, randomness = Augmentation(("crop", "rotate")), Randomness.for_purpose(0, "t")
    x = problem_and_points(None)[1].x.detach()
    steady = chain_augmentation(KERNELS["mala"](step_size=0.1), POINTS, augmentation, randomness)
    assert steady is not None
    assert torch.equal(steady(x), steady(x))
    fresh = chain_augmentation(KERNELS["langevin"](step_size=0.1), POINTS, augmentation, randomness)
    assert fresh is not None
    assert any(not torch.equal(fresh(x), fresh(x)) for _ in range(5))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"expert_epochs": -1}, r"The method 'cd' needs expert_epochs >= 0 \(got -1\)"),
        ({"chains": 0, "steps": 0}, r"needs chains >= 1 \(got 0\), steps >= 1 \(got 0\)\."),
        ({"sigma": -0.1}, r"needs sigma >= 0 \(got -0.1\)"),
        ({"expert_epochs": 0, "step_size_learning_rate": 1e-5}, "needs expert_epochs >= 1 and a positive rate"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ContrastiveDivergence(**settings)


def test_experts_are_needed() -> None:
    problem, points, _ = problem_and_points(None)
    with pytest.raises(InputError, match="needs experts"):
        ContrastiveDivergence().loss(points, Problem(problem.energy), Randomness.for_purpose(0, "t"))


# A conjugate model: x_i ~ N(theta, C) with the prior N(0, s^2 I), so that every posterior is Gaussian.

DIMENSION, FULL_SIZE, CORESET_SIZE = 4, 500, 3


@dataclass(frozen=True)
class GaussianMean:
    """x_i ~ N(theta, C), theta ~ N(0, s^2 I); labels play no part."""

    precision: Tensor
    prior_scale: float = 2.0

    @property
    def size(self) -> int:
        return len(self.precision)

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        difference = x - theta[..., None, :]
        return -((difference @ self.precision) * difference).sum(-1) / 2

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1) / (2 * self.prior_scale**2)

    def posterior(self, x: Tensor, weights: Tensor) -> torch.distributions.MultivariateNormal:
        """N(S C^-1 sum_i w_i x_i, S) with S^-1 = (sum_i w_i) C^-1 + I / s^2."""
        precision = weights.sum() * self.precision + torch.eye(self.size) / self.prior_scale**2
        mean = torch.linalg.solve(precision, self.precision @ (weights[:, None] * x).sum(0))
        return torch.distributions.MultivariateNormal(mean, precision_matrix=precision)


@dataclass(frozen=True)
class ExactPosterior:
    """Samples of the full-data posterior itself in place of experts."""

    posterior: torch.distributions.MultivariateNormal

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw:
        noise = torch.randn(count, DIMENSION, generator=randomness.device)
        samples = self.posterior.mean + noise @ self.posterior.scale_tril.T
        return Draw(samples, samples)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_coreset_posterior_comes_near_the_full_posterior(seed: int) -> None:
    """KL(full posterior || coreset posterior), in closed form, falls at least twentyfold from a random start."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(DIMENSION, DIMENSION, generator=generator)
    covariance = root @ root.T / DIMENSION + 0.5 * torch.eye(DIMENSION)
    model = GaussianMean(torch.linalg.inv(covariance))
    truth = torch.randn(DIMENSION, generator=generator)
    data = truth + torch.randn(FULL_SIZE, DIMENSION, generator=generator) @ torch.linalg.cholesky(covariance).T
    full = model.posterior(data, torch.ones(FULL_SIZE))

    x = torch.randn(CORESET_SIZE, DIMENSION, generator=generator).requires_grad_()
    weights = uniform_weights(CORESET_SIZE, FULL_SIZE)
    points = Points(x, torch.zeros(CORESET_SIZE, dtype=torch.int64), weights)
    problem = Problem(Energy(model, FULL_SIZE), ExactPosterior(full))
    method = ContrastiveDivergence(
        expert_epochs=0, max_start_epoch=None, chains=20, steps=10, step_size=0.05, sigma=0.0
    )

    def divergence() -> float:
        return float(torch.distributions.kl_divergence(full, model.posterior(x.detach(), weights)))

    at_start = divergence()
    optimiser = torch.optim.SGD([x], lr=1.0)
    randomness = Randomness.for_purpose(seed, "conjugate")
    for iteration in range(200):
        randomness.reseed(seed, "conjugate", iteration)
        optimiser.zero_grad()
        method.loss(points, problem, randomness).value.backward()
        optimiser.step()
    assert at_start > 10, "a start that is already near would prove nothing"
    assert divergence() < at_start / 20


def test_closed_form_posterior_of_the_conjugate_model_is_the_energy() -> None:
    """The yardstick itself: -U / T and the Gaussian's log-density differ by a constant only."""
    model = GaussianMean(torch.tensor([[2.0, 0.5], [0.5, 1.0]]))
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    weights = torch.tensor([3.0, 1.0, 2.0])
    target = Energy(model, 6).target(x, torch.zeros(3, dtype=torch.int64), weights)
    theta = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    gap = -target.potential(theta) / target.temperature - model.posterior(x, weights).log_prob(theta)
    torch.testing.assert_close(gap, gap[:1].expand(20), rtol=0, atol=1e-4)
