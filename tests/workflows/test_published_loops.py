"""The plain loops that ``bpc bench`` sets condensation beside compute what our methods compute."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pseudocoresets.core.energy import Energy, uniform_weights
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods import METHODS, FeatureAlignment, GradientMatching, Points, Problem, RealData
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import build_network
from pseudocoresets.workflows.published_loops import PUBLISHED_LOOPS

NETWORK = build_network("convnet:depth=2,width=8", (1, 8, 8), 3)
LABELS = torch.arange(12) % 3
IMAGES = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["gm", "cafe"])
def test_the_loss_is_that_of_our_method(name: str) -> None:
    """At the same network, with batches that hold every image; but for what does not depend on the synthetic images."""
    loop = PUBLISHED_LOOPS[name](NETWORK, IMAGES, LABELS, 2, None)
    theta = NETWORK.initialise(3)
    module = NETWORK.module(theta)
    real = RealData(IMAGES, LABELS, lambda images: images)
    points = Points(loop.synthetic.detach().requires_grad_(), loop.labels, uniform_weights(6, 12))
    problem = Problem(Energy(Classifier(NETWORK), 12), real_data=lambda: real)
    method = METHODS[name]()
    if isinstance(method, GradientMatching):
        ours, apart = method.distance(theta, points, problem, Randomness.for_purpose(0)), 0.0
    else:
        assert isinstance(method, FeatureAlignment)
        ours = method.misalignment(theta, points, problem, Randomness.for_purpose(0))
        apart = F.cross_entropy(module(IMAGES), LABELS).item()
    theirs = loop.loss(module)
    assert theirs.item() - apart == pytest.approx(ours.item(), rel=1e-5)
    (mine,) = torch.autograd.grad(ours, points.x)
    (other,) = torch.autograd.grad(theirs, loop.synthetic)
    assert ((mine - other).norm() / other.norm()).item() < 1e-4


def test_distribution_matching_is_that_of_the_class_means() -> None:
    loop = PUBLISHED_LOOPS["dm"](NETWORK, IMAGES, LABELS, 2, None)
    theta = NETWORK.initialise(3)
    features = [NETWORK.features(theta, images) for images in (IMAGES, loop.synthetic)]
    labels = (LABELS, loop.labels)
    gaps = [[z[y == c].mean(0) for z, y in zip(features, labels, strict=True)] for c in range(3)]
    expected = torch.stack([(real - own).square().sum() for real, own in gaps]).sum()
    assert loop.loss(NETWORK.module(theta)).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("name", sorted(PUBLISHED_LOOPS))
def test_a_call_moves_the_images(name: str) -> None:
    loop = PUBLISHED_LOOPS[name](NETWORK, IMAGES, LABELS, 2, None, matches=2, epochs=1)
    before = loop.synthetic.detach().clone()
    for _ in range(2):
        loop()
    assert not torch.equal(loop.synthetic, before)
