"""Real images in classes beside synthetic ones, on which condensation methods are tested in double precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from methods_problems import DOUBLE, gradients, network_points, network_problem
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.data.augmentation import Augmentation
from pseudocoresets.methods import Points, Problem, RealData
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import build_network

LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 0])
STEPS = MappingProxyType({"x": 1e-6, "y": 1e-5, "weights": 1e-4})


def real_images() -> RealData:
    generator = torch.Generator().manual_seed(0)
    return RealData(torch.randn(10, 1, 8, 8, generator=generator, dtype=DOUBLE), LABELS, lambda images: images)


def problem_with(augmentation: Augmentation | None = None) -> Problem:
    real = real_images()
    return replace(network_problem(augmentation=augmentation), source=None, real_data=lambda: real)


def hard_points() -> Points:
    points = network_points()
    return replace(points, y=torch.tensor([0, 1, 2, 0, 1, 2]), weights=torch.ones(6, dtype=DOUBLE))


def real_points() -> Points:
    """Synthetic images that are the real ones."""
    images, labels = next(real_images().batches())
    return Points(images, labels, torch.ones(10, dtype=DOUBLE))


def share_left(
    data: Dataset,
    method: str,
    iterations: int,
    judge: Callable[[Tensor, Points, Problem, Randomness], Tensor],
    **settings: Any,
) -> float:
    """What ``iterations``, in place of one, leave of a distance under networks that the construction has not seen."""
    name, usual = "convnet:width=8", {"device": "cpu", "learning_rate": 0.1, "momentum": 0.5}
    made = [
        pc.construct(data, None, method, 1, network=name, iterations=n, **usual | settings) for n in (1, iterations)
    ]
    network, real = build_network(name, data.shape, 10), RealData.of(data, torch.device("cpu"))
    problem = Problem(Energy(Classifier(network), len(real)), real_data=lambda: real)

    def distance(points: Points) -> float:
        places = ((network.initialise(seed), Randomness.for_purpose(seed)) for seed in range(100, 105))
        return sum(judge(theta, points, problem, randomness).item() for theta, randomness in places)

    first, last = (distance(coreset.points) for coreset in made)
    return last / first


def check_gradient(
    loss: Callable[[Points], Tensor], points: Points, steps: Mapping[str, float] = STEPS, tolerance: float = 1e-5
) -> None:
    """The gradients of a loss in all that is learned, along random directions, against central differences."""
    found = gradients(loss(points), points)
    generator = torch.Generator().manual_seed(1)
    for name, step in steps.items():
        value = getattr(points, name).detach()
        direction = torch.randn(value.shape, generator=generator, dtype=DOUBLE)
        ends = [loss(replace(points, **{name: value + sign * step * direction})).item() for sign in (1, -1)]
        expected = float((found[name] * direction).sum())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(expected, rel=tolerance), name
