"""Distribution matching: its loss against a loop over classes, its gradient against finite differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from condensation_problems import LABELS, check_gradient, hard_points, problem_with, real_images, share_left
from methods_problems import DOUBLE, GaussianModel, gaussian_points, gradients, network_points
from torch import Tensor

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.data.augmentation import KINDS, Augmentation
from pseudocoresets.methods import DistributionMatching, Points, Problem
from pseudocoresets.methods.estimator import network_of


def distance(points: Points, problem: Problem, seed: int = 3) -> Tensor:
    return DistributionMatching().loss(points, problem, Randomness.for_purpose(seed)).value


def test_loss_is_the_sum_over_classes_of_squared_distances_of_means() -> None:
    """Batches that hold every image of a class; the second network is another one."""
    problem, points = problem_with(), hard_points()
    images, labels = next(real_images().batches())
    losses = []
    for seed in (3, 4):
        network = network_of(problem, "dm")
        module = network.module(network.draw(1, Randomness.for_purpose(seed).device)[0]).double()
        embed = torch.nn.Sequential(module.features, module.flatten)
        expected = sum(
            (embed(images[labels == c]).mean(0) - embed(points.x[points.y == c]).mean(0)).square().sum()
            for c in range(3)
        )
        losses.append(distance(points, problem, seed))
        torch.testing.assert_close(losses[-1], expected, rtol=1e-6, atol=0)  # the module's parameters are float32
    assert losses[0] != losses[1]


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_gradient_is_that_of_finite_differences(kind: str | None) -> None:
    """In images, soft labels and weights, along random directions, under each kind of augmentation."""
    problem = problem_with(None if kind is None else Augmentation((kind,)))
    points = network_points()
    check_gradient(lambda given: distance(given, problem), points)


@pytest.mark.parametrize("kind", KINDS)
def test_real_and_synthetic_images_share_one_draw(kind: str) -> None:
    """Synthetic images that are the real ones are at distance zero, whatever the augmentation is."""
    images, labels = next(real_images().batches())
    points = Points(images, labels, torch.ones(10, dtype=DOUBLE))
    assert distance(points, problem_with(Augmentation((kind,)))).item() < 1e-20


def test_a_class_without_images_is_left_out() -> None:
    points = hard_points()
    kept = points.y != 1
    some = Points(points.x[kept], points.y[kept], points.weights[kept])
    loss = distance(some, problem_with())
    assert 0 < loss.item() < distance(points, problem_with()).item()
    assert torch.isfinite(gradients(loss, some)["x"]).all()


def test_class_batches_hold_distinct_images_of_every_class_as_often_as_the_others() -> None:
    real, seen = real_images(), torch.zeros(10)
    all_images, _ = next(real.batches())
    for seed in range(300):
        x, y, counts = real.class_batch(2, Randomness.for_purpose(seed))
        assert counts == (2, 2, 2)
        assert y.tolist() == [0, 0, 1, 1, 2, 2]
        index = (x[:, None] == all_images).flatten(2).all(2).nonzero()[:, 1]
        assert len(index.unique()) == 6
        seen[index] += 1
    expected = 600 / LABELS.bincount()[LABELS]
    assert ((seen - expected).abs() < 5 * expected.sqrt()).all()
    assert real.class_batch(9, Randomness.for_purpose(0)).counts == (4, 4, 2)


def test_it_learns_images_without_experts(digits: Dataset) -> None:
    def judge(theta: Tensor, points: Points, problem: Problem, randomness: Randomness) -> Tensor:
        return DistributionMatching().loss(points, problem, randomness).value  # draws a network of its own

    assert share_left(digits, "dm", 40, judge, learning_rate=1.0) < 0.5


def test_what_it_needs_is_named() -> None:
    with pytest.raises(InputError, match="needs the real data"):
        distance(hard_points(), replace(problem_with(), real_data=None))
    with pytest.raises(InputError, match="'dm' starts from a network's initialisation"):
        distance(gaussian_points(), replace(problem_with(), energy=Energy(GaussianModel(), 40)))
    with pytest.raises(InputError, match="batch_size >= 1"):
        DistributionMatching(batch_size=0)
