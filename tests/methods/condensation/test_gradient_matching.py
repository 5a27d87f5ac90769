"""Gradient matching: its loss against a loop over layers, its gradient against finite differences, its networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from condensation_problems import check_gradient, hard_points, problem_with, real_images, real_points, share_left
from methods_problems import (
    DOUBLE,
    GaussianModel,
    PreciseClassifier,
    gaussian_points,
    gradients,
    network_points,
    small_network,
)
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.data.augmentation import KINDS, Augmentation
from pseudocoresets.methods import GradientMatching, Points, Problem, SiameseGradientMatching
from pseudocoresets.methods.condensation.classes import class_gradients
from pseudocoresets.methods.condensation.gradient_matching import layer_distance
from pseudocoresets.methods.estimator import network_of
from pseudocoresets.models.networks import Network, build_network

THETA = small_network().initialise(5).to(DOUBLE)


def distance(points: Points, problem: Problem, method: GradientMatching | None = None) -> Tensor:
    return (method or GradientMatching()).distance(THETA, points, problem, Randomness.for_purpose(3))


def test_loss_is_the_sum_over_classes_layers_and_units_of_one_minus_a_cosine() -> None:
    """By the module's own autograd, with batches that hold every image of a class."""
    points, module = hard_points(), small_network().module(THETA).double()
    module.load_state_dict(small_network().unflatten(THETA), strict=False)
    images, labels = next(real_images().batches())
    expected = torch.zeros((), dtype=DOUBLE)
    for c in range(3):
        own, real = (
            torch.autograd.grad(
                F.cross_entropy(module(x), torch.full((len(x),), c)),
                [p for p in module.parameters() if p.dim() > 1],
            )
            for x in (points.x[points.y == c], images[labels == c])
        )
        for mine, wanted in zip(own, real, strict=True):
            for q, g in zip(mine.flatten(1), wanted.flatten(1), strict=True):
                expected += 1 - q @ g / (q.norm() * g.norm() + 1e-6)
    torch.testing.assert_close(distance(points, problem_with()), expected, rtol=1e-10, atol=0)


def test_gradient_is_that_of_finite_differences() -> None:
    """In images, soft labels and weights; a second derivative of the cross-entropy."""
    problem = problem_with()
    check_gradient(lambda points: distance(points, problem), network_points())
    check_gradient(lambda points: distance(points, problem), hard_points(), {"x": 1e-6})


def test_differences_are_the_exact_gradient_of_a_smooth_network() -> None:
    """In images, soft labels and weights, to second order in the radius."""
    network = build_network("convnet:depth=2,width=4,activation=sigmoid", (1, 8, 8), 3)
    problem = replace(problem_with(), energy=Energy(PreciseClassifier(network), 100))
    theta = network.initialise(5).to(DOUBLE)
    for points in (network_points(), replace(network_points(), y=hard_points().y)):
        exact, coarse, fine = (
            gradients(
                GradientMatching(gradient=name).distance(theta, points, problem, Randomness.for_purpose(3)), points
            )
            for name in ("exact", "differences:radius=0.02", "differences:radius=0.002")
        )
        for name, wanted in exact.items():
            errors = [((found[name] - wanted).norm() / wanted.norm()).item() for found in (coarse, fine)]
            assert errors[1] < 1e-3, name
            assert errors[1] < 0.02 * errors[0], name


class Recurrent(nn.Module):
    """One convolution that is applied twice, and an activation that overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.relu = nn.Conv2d(1, 1, 3, padding=1), nn.ReLU(inplace=True)
        self.linear = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.convolution(self.relu(self.convolution(x))).flatten(1))


class Overwriting(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 3))


@pytest.mark.parametrize(
    ("build", "traceable"),
    [
        (
            lambda: nn.Sequential(nn.Conv2d(1, 4, (2, 3), (3, 2), (0, 1)), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)),
            True,
        ),
        (Recurrent, False),
        (Overwriting, False),
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 6, groups=2), nn.Flatten(), nn.Linear(4, 3)), False),
    ],
)
def test_gradients_of_all_classes_at_once_are_those_of_each(build: Callable[[], nn.Module], traceable: bool) -> None:
    """Of classes of unequal size, by a network whose layers can be followed and by others."""
    network = Network.from_module(build, (1, 8, 8), 3)
    theta, x = network.initialise(0).to(DOUBLE), hard_points().x.detach()
    assert (network.traced(theta.requires_grad_(), x)[1] is not None) == traceable
    shares = torch.tensor([0.2, 0.8, 0.1, 0.6, 0.3, 1.0], dtype=DOUBLE)
    parts = [slice(0, 2), slice(2, 5), slice(5, 6)]
    groups = [Points(x[part], torch.full((len(x[part]),), c), shares[part]) for c, part in enumerate(parts)]
    found = class_gradients(network, theta, groups)
    module = network.module(theta).double()
    module.load_state_dict(network.unflatten(theta.detach()), strict=False)
    matrices = [each for each in module.parameters() if each.dim() > 1]
    for c, own in enumerate(groups):
        energy = (own.weights * F.cross_entropy(module(own.x), own.y, reduction="none")).sum()
        for q, wanted in zip(found, torch.autograd.grad(energy, matrices), strict=True):
            torch.testing.assert_close(q[c], wanted.flatten(1), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_under_augmentation_is_that_of_finite_differences(kind: str) -> None:
    problem = problem_with(Augmentation((kind,)))
    check_gradient(lambda points: distance(points, problem, SiameseGradientMatching()), hard_points(), {"x": 1e-6})


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_class_batch_that_is_the_synthetic_one_is_at_distance_zero(kind: str | None) -> None:
    """Whatever the augmentation, of which there is one draw for both; but for what keeps a cosine from 0 / 0."""
    problem = problem_with(None if kind is None else Augmentation((kind,)))
    points, network = real_points(), small_network()
    found = distance(points, problem, SiameseGradientMatching())
    gradient = torch.autograd.grad(
        -problem.energy.model.log_likelihood(theta := THETA.clone().requires_grad_(), points.x, points.y).sum(), theta
    )[0]
    units = sum(len(value) for value in network.unflatten(THETA).values() if value.dim() > 1)
    assert layer_distance(network, gradient, gradient, 1e-30).item() == pytest.approx(0, abs=1e-12 * units)
    assert 0 <= found.item() < 0.05 * distance(hard_points(), problem, SiameseGradientMatching()).item()


def test_gm_sees_no_augmentation() -> None:
    points, plain = hard_points(), problem_with()
    augmented = problem_with(Augmentation(("scale",)))
    losses = [GradientMatching().loss(points, each, Randomness.for_purpose(1)).value for each in (plain, augmented)]
    assert losses[0] == losses[1]
    assert SiameseGradientMatching().loss(points, augmented, Randomness.for_purpose(1)).value != losses[0]


def test_networks_are_trained_between_matches_and_drawn_anew_after_the_last() -> None:
    """The second network is the first after two steps of SGD on the points, the third a fresh one."""
    method, points, problem = GradientMatching(matches=2, epochs=2, step_size=0.1), hard_points(), problem_with()
    points = replace(points, weights=torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 1.0], dtype=DOUBLE))
    network, networks = network_of(problem, "gm"), []
    for seed in range(3):
        loss = method.loss(points, problem, Randomness.for_purpose(seed))
        networks.append(loss.state["network"])
        points = replace(points, state=loss.state)
    fresh = [network.draw(1, Randomness.for_purpose(seed).device)[0].to(DOUBLE) for seed in (0, 2)]
    assert torch.equal(networks[0], fresh[0])
    assert torch.equal(networks[2], fresh[1])
    theta = networks[0]
    for _ in range(2):
        theta = theta.detach().requires_grad_()
        losses = F.cross_entropy(network.logits(theta, points.x.detach()), points.y, reduction="none")
        energy = (points.weights * losses).sum() / points.weights.sum()
        theta = theta - 0.1 * torch.autograd.grad(energy, theta)[0]
    torch.testing.assert_close(networks[1], theta, rtol=1e-9, atol=1e-12)


def test_many_points_are_dealt_out_to_batches_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch of seven points in batches of at most three has three, and takes every point in its turn."""
    from pseudocoresets.methods.condensation import training

    monkeypatch.setattr(training, "TRAINING_BATCH", 3)
    seen: list[Tensor] = []

    class Watching(type(problem_with().backend)):  # type: ignore[misc]
        def chains(self, *arguments: object, **others: object) -> object:
            runner = super().chains(*arguments, **others)
            run_block = runner.run_block
            runner.run_block = lambda x, *rest: (seen.append(x), run_block(x, *rest))
            return runner

    x = torch.arange(7, dtype=DOUBLE)[:, None, None, None].expand(7, 1, 8, 8)
    points = Points(x, torch.arange(7) % 3, torch.ones(7, dtype=DOUBLE))
    problem = replace(problem_with(), backend=Watching())
    network = network_of(problem, "gm")
    training.trained(network, THETA, points, 7, 0.01, None, problem, Randomness.for_purpose(0))
    assert [len(each[0, 0]) for each in seen] == [3] * 21
    assert torch.cat([each[0, 0, :, 0, 0, 0] for each in seen]).long().bincount().tolist() == [9] * 7


def test_a_class_without_images_is_left_out() -> None:
    points = hard_points()
    kept = points.y != 1
    some = Points(points.x[kept], points.y[kept], points.weights[kept])
    assert 0 < distance(some, problem_with()).item() < distance(points, problem_with()).item()


def test_it_learns_images_from_noise_without_experts(digits: Dataset) -> None:
    options = {"batch_size": 64, "matches": 2, "epochs": 2}
    judge = GradientMatching(batch_size=64).distance
    assert share_left(digits, "gm", 30, judge, initialisation="noise", method_options=options) < 0.9


def test_what_it_needs_is_named() -> None:
    with pytest.raises(InputError, match=r"'dsa' needs the real data"):
        distance(hard_points(), replace(problem_with(), real_data=None), SiameseGradientMatching())
    with pytest.raises(InputError, match="'gm' starts from a network's initialisation"):
        problem = replace(problem_with(), energy=Energy(GaussianModel(), 40))
        GradientMatching().loss(gaussian_points(), problem, Randomness.for_purpose(0))
    with pytest.raises(InputError, match=r"'gm' needs matches >= 1 \(got 0\), epochs >= 1"):
        GradientMatching(matches=0, epochs=0)
    with pytest.raises(InputError, match="The gradient of 'dsa' is exact or differences; got stored"):
        SiameseGradientMatching(gradient="stored")
