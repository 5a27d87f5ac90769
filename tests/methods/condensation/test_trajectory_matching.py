"""Trajectory matching as published: its loss and gradient against the plain unrolled loop, its settings by size."""

from __future__ import annotations

import pytest
import torch
from methods_problems import gradients, network_points, network_problem
from torch import Tensor
from torch.func import functional_call

import pseudocoresets as pc
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.methods import Points, Problem, TrajectoryMatching
from pseudocoresets.methods.estimator import network_of


def published(points: Points, problem: Problem, steps: int) -> Tensor:
    """Steps of SGD on the mean cross-entropy with its graph kept, and the squared errors of the ends, as a ratio.

    The prior's slope theta / n is added by hand; weights count as w_i / n.
    """
    network, source = network_of(problem, "mtt"), problem.source
    assert source is not None
    draw = source.draw(2, 19, 2, Randomness.for_purpose(0))
    ratios = []
    for start, target in zip(draw.start, draw.later, strict=True):
        theta = start.clone().requires_grad_()
        for _ in range(steps):
            logits = functional_call(network.prototype.double(), network.unflatten(theta), (points.x,))
            loss = -(points.weights / 100 * (points.y * logits.log_softmax(-1)).sum(-1)).sum()
            (slope,) = torch.autograd.grad(loss, theta, create_graph=True)
            theta = theta - points.hyperparameters["step_size"] * (slope + theta / 100)
        distances = [torch.nn.functional.mse_loss(at, target, reduction="sum") for at in (theta, start)]
        ratios.append(distances[0] / distances[1])
    return (ratios[0] + ratios[1]) / 2


def test_loss_and_gradient_are_those_of_the_published_loop() -> None:
    """In images, labels, weights and step size, in double precision; equal up to the order of summation."""
    problem, points = network_problem(), network_points(step_size=0.1)
    loss = TrajectoryMatching(steps=4, chains=2).loss(points, problem, Randomness.for_purpose(0)).value
    expected = published(points, problem, 4)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    wanted, found = gradients(expected, points), gradients(loss, points)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-11 * float(gradient.abs().max()))


@pytest.mark.parametrize(
    ("dataset", "ipc", "expected"),
    [
        ("cifar10", 1, (50, 2, 1, 0.01, 1e-7, 100.0)),
        ("cifar10", 10, (30, 2, 19, 0.001, 1e-5, 100.0)),
        ("cifar10", 50, (30, 2, 39, 0.001, 1e-5, 1000.0)),
        ("tiny-imagenet", 1, (10, 2, 9, 0.01, 1e-4, 1e4)),
        ("tiny-imagenet", 10, (20, 2, 39, 0.01, 1e-4, 1e4)),
    ],
)
def test_the_preset_has_the_published_settings(dataset: str, ipc: int, expected: tuple[float, ...]) -> None:
    """Steps, expert epochs, last start, first step size and its rate, and the images' rate."""
    own = pc.preset("paper", dataset, ipc)
    method, learning = TrajectoryMatching(**own.method_options("mtt")), own.construction_for("mtt")
    found = (
        method.steps,
        method.expert_epochs,
        method.max_start_epoch,
        method.step_size,
        method.step_size_learning_rate,
        learning["learning_rate"],
    )
    assert found == expected
    assert (learning["momentum"], learning["iterations"]) == (0.5, 5000)


def test_without_experts_it_says_so(digits: Dataset) -> None:
    with pytest.raises(InputError, match="'mtt' needs experts"):
        pc.construct(digits, None, "mtt", 1, network="convnet:width=4", device="cpu")
