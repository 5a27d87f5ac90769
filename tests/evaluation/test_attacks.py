"""Attacks against models whose robust accuracy is known in closed form, and against the average of chains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.dataset import Split
from pseudocoresets.evaluation.attacks import (
    APGD,
    FAB,
    PGD,
    Attack,
    AttackedImages,
    Square,
    Targeted,
    apgd_towards,
    attack_chains,
    averaged_scores,
    cross_entropy,
    onto_plane,
    robust_accuracy,
)

EPSILON = 0.02
SHAPE = (1, 6, 6)


def linear_problem(classes: int, count: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (classes, pixels), images well inside [0, 1] and the labels that the model itself gives them."""
    generator = torch.Generator().manual_seed(classes)
    weights = torch.randn(classes, SHAPE[1] * SHAPE[2], generator=generator)
    weights -= weights.mean(1, keepdim=True)  # so that brightness does not decide, and all classes are predicted
    pixels = 0.3 + 0.4 * torch.rand(count, *SHAPE, generator=generator)
    return weights, pixels, (pixels.flatten(1) @ weights.T).argmax(-1)


def closed_form(weights: Tensor, pixels: Tensor, labels: Tensor, epsilon: float) -> float:
    """Robust is: for each other class j, (w_y - w_j) x > epsilon ||w_y - w_j||_1."""
    gaps = weights[labels][:, None] - weights
    worst = (gaps * pixels.flatten(1)[:, None]).sum(-1) - epsilon * gaps.abs().sum(-1)
    return int((worst.scatter(1, labels[:, None], torch.inf) > 0).all(1).sum()) / len(labels)


@pytest.mark.parametrize(
    "attack",
    [PGD(), APGD(cross_entropy, 20), Targeted(partial(apgd_towards, steps=20))],
    ids=["pgd", "apgd-ce", "apgd-t"],
)
def test_gradient_attacks_reach_the_closed_form_of_a_linear_model_of_two_classes(attack: Attack) -> None:
    """There the worst point is one corner of the box, whatever the loss: the attack must find it for every image."""
    weights, pixels, labels = linear_problem(2)
    expected = closed_form(weights, pixels, labels, EPSILON)
    assert 0.1 < expected < 0.9
    found = robust_accuracy(lambda x: x.flatten(1) @ weights.T, pixels, labels, EPSILON, [attack])
    assert found == pytest.approx(expected)


def test_with_many_classes_no_attack_finds_more_than_there_is_and_together_they_find_nearly_all() -> None:
    weights, pixels, labels = linear_problem(5)
    expected = closed_form(weights, pixels, labels, EPSILON)

    def found(attacks: Sequence[Attack]) -> float:
        return robust_accuracy(lambda x: x.flatten(1) @ weights.T, pixels, labels, EPSILON, attacks)

    suite: list[Attack] = [APGD(cross_entropy, 30), Targeted(partial(apgd_towards, steps=10), 1), Square(100)]
    singles = [found([attack]) for attack in suite]
    assert min(singles) >= expected
    assert expected <= found(suite) <= singles[0]
    assert found(suite) <= expected + 0.03


@pytest.mark.parametrize("towards", [partial(apgd_towards, steps=30), partial(FAB, steps=20)], ids=["apgd", "fab"])
def test_attacks_towards_each_class_reach_the_closed_form_of_a_linear_model(towards: Any) -> None:
    """Towards a class j the model is one of two classes; FAB ends within a per cent of the boundary's distance."""
    weights, pixels, labels = linear_problem(5)
    least, most = (closed_form(weights, pixels, labels, factor * EPSILON) for factor in (1.0, 0.99))
    attack = Targeted(towards)
    found = robust_accuracy(lambda x: x.flatten(1) @ weights.T, pixels, labels, EPSILON, [attack])
    assert 0.1 < least <= found <= most < 0.9


def test_the_nearest_point_of_a_plane_is_that_of_a_linear_program() -> None:
    """min r such that < n, x + d > = level, |d_i| <= r and 0 <= x + d <= 1; out of reach, as far as pixels go."""
    generator = torch.Generator().manual_seed(3)
    x, normal = (
        torch.rand(6, 1, 2, 3, generator=generator).double(),
        torch.randn(6, 1, 2, 3, generator=generator).double(),
    )
    level = torch.tensor([0.4, -0.3, 1.0, 0.0, 0.2, 50.0]).double()
    found = onto_plane(x, normal, level)
    for point, slopes, start, wanted in zip(found[:5], normal, x, level, strict=False):
        n, p = slopes.flatten().numpy(), start.flatten().numpy()
        ones = np.ones((6, 1))
        limits = np.block([[np.eye(6), -ones], [-np.eye(6), -ones]])
        program = linprog(
            [0.0] * 6 + [1.0], limits, np.zeros(12), [[*n, 0.0]], [float(wanted) - n @ p],
            [*((-value, 1 - value) for value in p), (0, None)],
        )  # fmt: skip
        assert program.success
        assert float((point - start).abs().max()) == pytest.approx(program.fun, abs=1e-9)
        assert float((point * slopes).sum()) == pytest.approx(float(wanted), abs=1e-9)
        assert 0 <= float(point.min()) <= float(point.max()) <= 1
    torch.testing.assert_close(found[5], (normal[5] > 0).double())


def test_the_square_attack_needs_no_gradient() -> None:
    weights, pixels, labels = linear_problem(2)
    rounded = robust_accuracy(  # a staircase, whose gradient is zero everywhere
        lambda x: ((x.flatten(1) @ weights.T) * 50).round() / 50, pixels, labels, EPSILON, [Square(300)]
    )
    assert closed_form(weights, pixels, labels, EPSILON) <= rounded < closed_form(weights, pixels, labels, EPSILON / 4)


@pytest.mark.parametrize(
    "attack",
    [PGD(3), APGD(cross_entropy, 5), Targeted(apgd_towards, 1), Targeted(partial(FAB, steps=5)), Square(5)],
    ids=["pgd", "apgd", "apgd-t", "fab", "square"],
)
def test_attacks_stay_within_epsilon_and_the_pixels(attack: Attack) -> None:
    weights, _, labels = linear_problem(3)
    pixels = torch.rand(len(labels), *SHAPE, generator=torch.Generator().manual_seed(1)).round()
    images = AttackedImages(lambda x: x.flatten(1) @ weights.T, pixels, labels, EPSILON)
    moved = attack(images, generator_for(0, "test"))
    assert float((moved - pixels).abs().max()) <= EPSILON + 1e-6
    assert 0 <= float(moved.min()) <= float(moved.max()) <= 1


def test_a_chain_is_attacked_as_the_average_of_its_samples(coreset: pc.Coreset, digits: pc.Dataset) -> None:
    samples = pc.sample_posterior(coreset, chains=2, steps=40, samples=4, step_size=0.1, device="cpu")
    part = Split(digits.test.images[:60], digits.test.labels[:60])
    scores = averaged_scores(samples)(part.images)
    expected = samples.predict(part.images).flatten(0, 1).mean(0)
    torch.testing.assert_close(scores.softmax(-1), expected, rtol=1e-4, atol=1e-5)

    none, small, large = (
        attack_chains(samples, part, epsilon, [PGD(5)], samples_per_chain=4) for epsilon in (0.0, 0.02, 0.3)
    )
    clean = pc.evaluate(samples, part)
    assert none.ensemble == pytest.approx(clean.ensemble["accuracy"])
    assert none.chains.mean == pytest.approx(clean.accuracy.mean)
    assert none.ensemble > small.ensemble > large.ensemble
    assert len(small.chains.values) == 2
