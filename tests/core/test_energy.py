"""The energy: its definition, its gradients, and populations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional as F

from pseudocoresets.core.energy import Energy, FunctionTarget, potential_and_gradient, uniform_weights
from pseudocoresets.core.errors import InputError
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import build_network

SHAPE, CLASSES, POINTS, DATA_SIZE = (1, 8, 8), 4, 5, 200
STEP = 1e-6


class Logistic:
    """Multinomial logistic regression in float64 with the prior N(0, s^2 I): a model with nothing but a formula."""

    def __init__(self, inputs: int, classes: int, prior_scale: float) -> None:
        self.size = inputs * classes
        self._classes = classes
        self._prior_scale = prior_scale

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        scores = x @ theta.unflatten(-1, (-1, self._classes))
        expected = y if y.is_floating_point() else F.one_hot(y, self._classes).to(scores)
        return (scores.log_softmax(-1) * expected).sum(-1)

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1) / (2 * self._prior_scale**2)


def logistic_problem(soft: bool) -> tuple[Energy, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(POINTS, 3, generator=generator, dtype=torch.float64)
    hard = torch.randint(CLASSES, (POINTS,), generator=generator)
    probabilities = torch.randn(POINTS, CLASSES, generator=generator, dtype=torch.float64).softmax(-1)
    weights = torch.rand(POINTS, generator=generator, dtype=torch.float64) * 50
    model = Logistic(3, CLASSES, prior_scale=0.7)
    theta = torch.randn(model.size, generator=generator, dtype=torch.float64)
    return Energy(model, DATA_SIZE, temperature=0.5), theta, x, probabilities if soft else hard, weights


@pytest.mark.parametrize("soft", [False, True])
def test_gradients_agree_with_finite_differences(soft: bool) -> None:
    """In the parameters, the points, the weights and (soft) the labels; gradcheck compares central differences."""
    energy, theta, x, y, weights = logistic_problem(soft)
    inputs = [theta, x, weights, *([y] if soft else [])]
    for value in inputs:
        value.requires_grad_()

    def potential(theta: Tensor, x: Tensor, weights: Tensor, labels: Tensor = y) -> Tensor:
        return energy.potential(theta, x, labels, weights)

    assert gradcheck(potential, inputs, eps=STEP, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("network", ["mlp:depth=2,width=6,activation=sigmoid", "convnet:depth=2,width=2"])
@pytest.mark.parametrize("soft", [False, True])
def test_a_networks_gradients_agree_with_finite_differences(network: str, soft: bool) -> None:
    """In float64, along a random direction of the parameters, the points and the weights.

    The error of a central difference of step h is of order h^2 + 1e-16 / h, below 1e-9 here, unless a kink is near.
    """
    built = build_network(network, SHAPE, CLASSES)
    energy = Energy(Classifier(built, prior_scale=0.5), DATA_SIZE)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(POINTS, *SHAPE, generator=generator, dtype=torch.float64)
    hard = torch.randint(CLASSES, (POINTS,), generator=generator)
    y = torch.rand(POINTS, CLASSES, generator=generator, dtype=torch.float64).softmax(-1) if soft else hard
    inputs = [built.initialise(3).double(), x, uniform_weights(POINTS, DATA_SIZE).double()]

    def potential(values: list[Tensor]) -> Tensor:
        return energy.potential(values[0], values[1], y, values[2])

    leaves = [value.clone().requires_grad_() for value in inputs]
    gradients = torch.autograd.grad(potential(leaves), leaves)
    for which, gradient in enumerate(gradients):
        direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        direction = direction / direction.norm() + gradient / gradient.norm()

        def moved(step: float, which: int = which, direction: Tensor = direction) -> Tensor:
            return potential([value + step * direction if i == which else value for i, value in enumerate(inputs)])

        difference = float((moved(STEP) - moved(-STEP)) / (2 * STEP))
        assert difference == pytest.approx(float((gradient * direction).sum()), rel=1e-6, abs=1e-9)


@given(
    weights=st.lists(st.floats(0, 100), min_size=POINTS, max_size=POINTS),
    prior_scale=st.floats(0.1, 10),
    temperature=st.floats(0, 4),
    soft=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_the_potential_is_what_the_documentation_says(
    weights: list[float], prior_scale: float, temperature: float, soft: bool
) -> None:
    """U = (sum_i w_i cross-entropy_i + |theta|^2 / (2 s^2)) / n and T = temperature / n, point by point."""
    network = build_network("mlp:depth=1,width=4", SHAPE, CLASSES)
    energy = Energy(Classifier(network, prior_scale), DATA_SIZE, temperature)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(POINTS, *SHAPE, generator=generator)
    y = torch.randint(CLASSES, (POINTS,), generator=generator)
    labels = torch.randn(POINTS, CLASSES, generator=generator).softmax(-1) if soft else y
    theta = network.initialise(0)
    logits = network.module(theta)(x).detach().double()
    total = 0.0
    for i, weight in enumerate(weights):
        for c in range(CLASSES):
            share = float(labels[i, c]) if soft else float(int(labels[i]) == c)
            total -= weight * share * float(logits[i, c] - logits[i].logsumexp(0))
    prior = float(theta.double().square().sum()) / (2 * prior_scale**2)
    target = energy.target(x, labels, torch.tensor(weights))
    assert float(energy.per_datum(theta, x, labels, torch.tensor(weights))) == pytest.approx(
        total / DATA_SIZE, rel=1e-5, abs=1e-6
    )
    assert float(target.potential(theta)) == pytest.approx((total + prior) / DATA_SIZE, rel=1e-5, abs=1e-6)
    assert target.temperature == temperature / DATA_SIZE


@pytest.mark.parametrize("network", ["mlp:depth=1,width=6", "convnet:depth=2,width=2"])
@pytest.mark.parametrize("soft", [False, True])
def test_a_population_is_its_members(network: str, soft: bool) -> None:
    built = build_network(network, SHAPE, CLASSES)
    energy = Energy(Classifier(built), DATA_SIZE)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(POINTS, *SHAPE, generator=generator)
    y = torch.randint(CLASSES, (POINTS,), generator=generator)
    labels = F.one_hot(y, CLASSES).float() if soft else y
    population = built.initialise(5, chains=3)
    target = energy.target(x, labels, uniform_weights(POINTS, DATA_SIZE))
    together, gradients = potential_and_gradient(target, population)
    alone = [potential_and_gradient(target, theta) for theta in population]
    torch.testing.assert_close(together, torch.stack([value for value, _ in alone]))
    torch.testing.assert_close(gradients, torch.stack([gradient for _, gradient in alone]), rtol=1e-4, atol=1e-6)


def test_one_hot_soft_labels_are_hard_labels() -> None:
    energy, theta, x, y, weights = logistic_problem(soft=False)
    soft = F.one_hot(y, CLASSES).double()
    assert energy.potential(theta, x, y, weights) == energy.potential(theta, x, soft, weights)


def test_a_point_of_weight_two_is_the_point_twice() -> None:
    energy, theta, x, y, weights = logistic_problem(soft=False)
    twice = torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), torch.cat([weights, weights[:1]])
    heavier = weights * torch.tensor([2.0, 1, 1, 1, 1], dtype=torch.float64)
    torch.testing.assert_close(energy.potential(theta, *twice), energy.potential(theta, x, y, heavier))


def test_uniform_weights_sum_to_the_size_of_the_full_data() -> None:
    assert float(uniform_weights(7, 1300).double().sum()) == pytest.approx(1300, rel=1e-6)


@given(st.floats(0.1, 10), st.integers(1, 10_000))
@settings(max_examples=30, deadline=None)
def test_the_decay_is_the_priors_part_of_the_slope(scale: float, data_size: int) -> None:
    model = Classifier(build_network("mlp:width=4", (1, 2, 2), 3), scale)
    theta = model.network.initialise(0, 1)[0].double().requires_grad_()
    (slope,) = torch.autograd.grad(-model.log_prior(theta) / data_size, theta)
    torch.testing.assert_close(slope, model.decay(data_size) * theta.detach())


def test_augmentation_is_applied_at_each_evaluation() -> None:
    energy, theta, x, y, weights = logistic_problem(soft=False)
    calls: list[Tensor] = []

    def augment(points: Tensor) -> Tensor:
        calls.append(points)
        return points * len(calls)

    target = energy.target(x, y, weights, augment)
    for factor in (1, 2):
        assert target.potential(theta) == energy.potential(theta, x * factor, y, weights)


def test_a_closed_form_gradient_is_used_where_there_is_one() -> None:
    class Quadratic(FunctionTarget):
        def potential_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
            return theta.square().sum(-1), torch.full_like(theta, math.pi)

    _, gradient = potential_and_gradient(Quadratic(lambda theta: theta.square().sum(-1)), torch.ones(2))
    assert gradient.tolist() == pytest.approx([math.pi, math.pi])


def test_impossible_settings_are_refused() -> None:
    network = build_network("mlp:depth=1,width=4", SHAPE, CLASSES)
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="prior scale"):
            Classifier(network, scale)
    with pytest.raises(InputError, match="temperature"):
        Energy(Classifier(network), DATA_SIZE, -0.1)
