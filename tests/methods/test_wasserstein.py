"""Trajectory matching: the stored gradient is the exact one, and its memory does not grow with k."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from methods_problems import gradients, network_points, network_problem
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Motion, at_rest
from pseudocoresets.data.augmentation import Augmentation, dsa
from pseudocoresets.gradients import Detached, Differences, Exact, GradientEstimator, Stored
from pseudocoresets.gradients.adjoint import StoredTrajectory
from pseudocoresets.gradients.descent import draw_subsets
from pseudocoresets.methods import METHODS, ContrastiveWasserstein, Points, Problem, Wasserstein


def plain_unrolled(points: Points, problem: Problem, steps: int, detach: bool = False) -> Tensor:
    """The definition, straight: k steps of gradient descent on the coreset, without augmentation."""
    draw = problem.source.draw(2, None, 1, Randomness.for_purpose(0))
    theta = draw.start.clone().requires_grad_()
    for _ in range(steps):
        at = theta.detach().requires_grad_() if detach else theta
        log_likelihood = problem.energy.model.log_likelihood(at, points.x, points.y)
        potential = -(points.weights * log_likelihood).sum() / 100 - problem.energy.model.log_prior(at).sum() / 100
        (gradient,) = torch.autograd.grad(potential, at, create_graph=True)
        theta = theta - points.hyperparameters["step_size"] * gradient
    distance = (theta - draw.later).square().sum(1) / (draw.start - draw.later).square().sum(1)
    return distance.mean()


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Equal to rounding: sums of many products in double precision."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        scale = float(theirs[name].abs().max())
        assert scale > 0, name
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-9, atol=1e-11 * scale)


@pytest.mark.parametrize(("states", "points_per_step"), [(2, 0), (3, 4), (32, 0)])
def test_stored_gradient_is_the_unrolled_one(states: int, points_per_step: int) -> None:
    """In the images, the labels, the weights and the step size, with augmentation, for two chains."""
    problem = network_problem(augmentation=dsa(flippable=False))
    points = network_points(step_size=0.1)
    found = []
    for gradient in (Stored(states), Exact()):
        method = Wasserstein(steps=7, chains=2, gradient=gradient, points_per_step=points_per_step)
        loss = method.loss(points, problem, Randomness.for_purpose(11))
        found.append((loss.value.detach(), gradients(loss.value, points)))
    (stored, stored_gradients), (exact, exact_gradients) = found
    torch.testing.assert_close(stored, exact, rtol=1e-12, atol=0)
    assert_same_gradients(stored_gradients, exact_gradients)


@given(steps=st.integers(1, 30), count=st.integers(1, 20), size=st.integers(0, 25), seed=st.integers(0, 100))
def test_steps_that_see_a_part_of_the_points_see_all_in_turn(steps: int, count: int, size: int, seed: int) -> None:
    subsets = draw_subsets(steps, count, size, Randomness.for_purpose(seed))
    if size == 0 or size >= count:
        assert subsets is None
        return
    assert subsets is not None
    assert subsets.shape == (steps, size)
    times = torch.bincount(subsets.flatten(), minlength=count)
    assert int(times.max() - times.min()) <= 1


def test_the_weights_of_a_part_sum_to_those_of_all_on_average() -> None:
    """Three steps of two of six points see each point once, so that the mean of their weights' sums is exact."""
    problem, points = network_problem(), network_points()
    views = problem.descent(points, 3, 2).views(Randomness.for_purpose(0))
    sums = torch.stack([view(points).weights.sum() for view in views])
    torch.testing.assert_close(sums.mean(), points.weights.sum())


def test_differences_are_the_exact_gradient_where_no_unit_switches() -> None:
    """At this radius no ReLU changes sides, and what is left is of the order of the radius squared."""
    problem = network_problem(augmentation=dsa(flippable=False))
    points = network_points(step_size=0.1)
    wanted, found = (
        gradients(
            Wasserstein(steps=7, chains=2, gradient=gradient).loss(points, problem, Randomness.for_purpose(11)).value,
            points,
        )
        for gradient in (Stored(), Differences(radius=1e-4))
    )
    for name, exact in wanted.items():
        assert float((found[name] - exact).norm()) < 1e-4**2 * 10 * float(exact.norm()), name


@pytest.mark.parametrize("gradient", ["stored", Exact()])
def test_loss_is_the_papers_definition(gradient: str | GradientEstimator) -> None:
    problem, points = network_problem(), network_points(step_size=0.1)
    expected = plain_unrolled(points, problem, 5)
    loss = Wasserstein(steps=5, chains=2, gradient=gradient).loss(points, problem, Randomness.for_purpose(0))
    torch.testing.assert_close(loss.value, expected, rtol=1e-12, atol=0)
    assert_same_gradients(gradients(loss.value, points), gradients(expected, points))


def test_detached_gradient_holds_each_steps_parameters_fixed() -> None:
    problem, points = network_problem(), network_points(step_size=0.1)
    expected = plain_unrolled(points, problem, 5, detach=True)
    loss = Wasserstein(steps=5, chains=2, gradient=Detached()).loss(points, problem, Randomness.for_purpose(0))
    assert_same_gradients(gradients(loss.value, points), gradients(expected, points))


def test_step_size_gradient_by_finite_differences() -> None:
    problem = network_problem()
    method = Wasserstein(steps=6, chains=2, gradient="stored")

    def value(step_size: float) -> Tensor:
        points = network_points(step_size=step_size)
        loss = method.loss(points, problem, Randomness.for_purpose(0)).value
        return torch.stack([loss.detach(), gradients(loss, points)["step_size"]])

    width = 1e-5
    slope = (value(0.1 + width)[0] - value(0.1 - width)[0]) / (2 * width)
    # Central differences: truncation of order width^2, rounding of order 1e-16 / width.
    torch.testing.assert_close(value(0.1)[1], slope, rtol=1e-7, atol=1e-9)


def peak_saved_bytes(steps: int, gradient: GradientEstimator) -> int:
    """The most bytes that autograd holds for backward passes at any one time, through loss and backward."""
    live = {"now": 0, "peak": 0}

    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor
            size = tensor.numel() * tensor.element_size()
            live["now"] += size
            live["peak"] = max(live["peak"], live["now"])
            weakref.finalize(self, self._release, size)

        @staticmethod
        def _release(size: int) -> None:
            live["now"] -= size

    # One kind of augmentation, so that every step's graph is alike.
    problem, points = network_problem(augmentation=Augmentation(("rotate",))), network_points(step_size=0.1)
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        method = Wasserstein(steps=steps, chains=2, gradient=gradient)
        method.loss(points, problem, Randomness.for_purpose(0)).value.backward()
    return live["peak"]


def test_graph_memory_does_not_grow_with_the_steps() -> None:
    """Unrolling adds a graph per step; the adjoint adds nothing but what the counting itself holds on to.

    While these hooks are set, PyTorch keeps a little of each step (0.7 % of its graph was seen), hence the 1 %.
    """
    one_step = peak_saved_bytes(1, Stored(4))

    def growth(gradient: GradientEstimator) -> float:
        return (peak_saved_bytes(40, gradient) - peak_saved_bytes(8, gradient)) / 32 / one_step

    assert growth(Stored(4)) < 0.01
    assert growth(Exact()) > 0.5


@pytest.mark.parametrize(("steps", "states", "most"), [(5, 8, 8), (64, 8, 16), (65, 8, 24), (500, 8, 24), (7, 2, 6)])
def test_trajectory_comes_back_in_order_and_holds_few_positions(steps: int, states: int, most: int) -> None:
    problem, points = network_problem(chains=1), network_points(step_size=0.01, learned=False)
    identity = [lambda x: x] * steps

    class Counting(StoredTrajectory):
        def _run(self, motion: Motion, first: int, last: int) -> Motion:
            return Motion(motion.position + (last - first), motion.velocity)

    trajectory = Counting(problem.descent(points, steps), identity, states)
    start = at_rest(torch.zeros(1, 1))
    assert float(trajectory.forwards(start).position) == steps
    order, held = [], []
    for t, theta in trajectory.positions():
        assert float(theta) == t
        order.append(t)
        held.append(trajectory.held)
    assert order == list(range(steps))[::-1]
    assert max(held) <= most
    assert trajectory.held == 0


def test_combination_is_the_sum_of_its_two_losses() -> None:
    problem, points = network_problem(), network_points(step_size=0.1)
    method = ContrastiveWasserstein(expert_epochs=1, steps=5, chains=2, step_size=0.1, sigma=0.0, weight=0.3)
    loss = method.loss(points, problem, Randomness.for_purpose(0))
    match = method.matching().loss(points, problem, Randomness.for_purpose(0))
    draw = problem.source.draw(2, None, 1, Randomness.for_purpose(0))
    theta = draw.start.clone()
    for _ in range(5):
        theta.requires_grad_()
        potential = problem.energy.potential(theta, points.x, points.y, points.weights).sum()
        theta = (theta - 0.1 * torch.autograd.grad(potential, theta)[0]).detach()
    energies = [problem.energy.per_datum(at, points.x, points.y, points.weights).mean() for at in (draw.later, theta)]
    expected = energies[0] - energies[1] + 0.3 * match.value
    torch.testing.assert_close(loss.value, expected, rtol=1e-12, atol=0)
    assert_same_gradients(gradients(loss.value, points), gradients(expected, points))


@pytest.mark.parametrize("name", ["wasserstein", "cd-wasserstein"])
def test_matching_a_snapshot_with_itself_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="expert_epochs >= 1"):
        METHODS[name](expert_epochs=0)
