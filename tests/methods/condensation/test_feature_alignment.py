"""Feature alignment: its loss against a loop over layers, its gradient, and how long its networks serve."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from condensation_problems import check_gradient, hard_points, problem_with, real_images, real_points, share_left
from methods_problems import DOUBLE, network_points, small_network
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.data.augmentation import KINDS, Augmentation
from pseudocoresets.methods import FeatureAlignment, Points, Problem, SiameseFeatureAlignment

THETA = small_network().initialise(5).to(DOUBLE)


def misalignment(points: Points, problem: Problem, method: FeatureAlignment | None = None) -> Tensor:
    return (method or FeatureAlignment()).misalignment(THETA, points, problem, Randomness.for_purpose(3))


def test_loss_is_that_of_the_layers_means_and_of_the_centres_as_a_classifier() -> None:
    """By the module's own layers: convolution, norm, activation and pooling, twice, and a linear layer."""
    points, module = hard_points(), small_network().module(THETA).double()
    module.load_state_dict(small_network().unflatten(THETA), strict=False)
    images, labels = next(real_images().batches())
    layers = [module.features[:3], module.features[:7], torch.nn.Sequential(module.features, module.flatten)]
    expected = torch.zeros((), dtype=DOUBLE)
    for weight, layer in zip((0.1, 1.0, 2.0), layers, strict=True):
        for c in range(3):
            gap = layer(points.x[points.y == c]).mean(0) - layer(images[labels == c]).mean(0)
            expected += weight * gap.square().sum()
    centres = torch.stack([layers[-1](points.x[points.y == c]).mean(0) for c in range(3)])
    expected += 0.01 * F.cross_entropy(layers[-1](images) @ centres.T, labels, reduction="sum")
    torch.testing.assert_close(misalignment(points, problem_with()), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", [None, "color", "rotate"])
def test_gradient_is_that_of_finite_differences(kind: str | None) -> None:
    problem = problem_with(None if kind is None else Augmentation((kind,)))
    check_gradient(lambda points: misalignment(points, problem, SiameseFeatureAlignment()), network_points())


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_real_and_synthetic_images_share_one_draw(kind: str | None) -> None:
    """Synthetic images that are the real ones have the same means, whatever the augmentation is."""
    problem = problem_with(None if kind is None else Augmentation((kind,)))
    assert misalignment(real_points(), problem, SiameseFeatureAlignment(discrimination=0.0)).item() < 1e-20


def test_cafe_sees_no_augmentation() -> None:
    method, points, augmented = FeatureAlignment(), hard_points(), problem_with(Augmentation(("scale",)))
    losses = [method.loss(points, each, Randomness.for_purpose(1)).value for each in (problem_with(), augmented)]
    assert losses[0] == losses[1]


def test_a_class_without_images_is_left_out() -> None:
    points = hard_points()
    kept = points.y != 1
    some = Points(points.x[kept], points.y[kept], points.weights[kept])
    loss = misalignment(some, problem_with())
    assert 0 < loss.item() < misalignment(points, problem_with()).item()
    assert torch.isfinite(torch.autograd.grad(loss, some.x)[0]).all()


class Scripted(FeatureAlignment):
    """With accuracies that are told beforehand."""

    script: list[float]

    def _accuracy(self, *_: object) -> Tensor:
        return torch.tensor(self.script.pop(0))


def scripted(script: list[float], **options: float) -> Scripted:
    method = Scripted(**options)  # type: ignore[arg-type]
    object.__setattr__(method, "script", script)
    return method


def test_training_goes_on_until_ten_accuracies_have_moved_apart() -> None:
    problem, points = problem_with(), hard_points()
    state = {"network": THETA, "accuracies": torch.zeros(0)}
    for script, left in (
        ([0.1] * 9 + [0.2, 0.5, 0.5], 1),  # the tenth epoch is the first that counts; one more is for the iteration
        ([*[0.2] * 10, 0.22, 0.24, 0.5, 0.9, 0.9], 2),  # two hundredths are not enough, four are
        ([0.2] * 40, 9),  # thirty epochs at most
    ):
        method = scripted(script, most_epochs=30)
        method.loss(replace(points, state=state), problem, Randomness.for_purpose(0))
        assert len(script) == left


def test_a_network_serves_until_ten_accuracies_lie_within_reach() -> None:
    points, problem = hard_points(), problem_with()
    accuracies = [0.1, 0.5, *[0.3] * 10]
    networks = []
    for iteration, accuracy in enumerate(accuracies):
        training = [0.0, 1.0] * 5 if points.state else []
        loss = scripted([*training, accuracy]).loss(points, problem, Randomness.for_purpose(iteration))
        networks.append("network" in loss.state)
        points = replace(points, state=loss.state)
    assert networks == [True] * 11 + [False]
    again = scripted([0.3]).loss(points, problem, Randomness.for_purpose(99)).state["network"]
    drawn = small_network().draw(1, Randomness.for_purpose(99).device)[0]
    assert torch.equal(again, drawn.to(DOUBLE))


def test_it_learns_images_from_noise_without_experts(digits: Dataset) -> None:
    options = {"batch_size": 64, "most_epochs": 2, "watched_images": 16}
    judge = FeatureAlignment(batch_size=64).misalignment
    assert share_left(digits, "cafe", 30, judge, initialisation="noise", method_options=options) < 0.9


def test_what_it_needs_is_named() -> None:
    with pytest.raises(InputError, match=r"'cafe-dsa' needs the real data"):
        misalignment(hard_points(), replace(problem_with(), real_data=None), SiameseFeatureAlignment())
    with pytest.raises(InputError, match=r"'cafe' needs settled >= 0 \(got -1\), most_epochs >= 1"):
        FeatureAlignment(settled=-1, most_epochs=0)
