"""Gradients through a coreset's descent, by its adjoint, for whatever is asked of the place where it ends.

    theta_{t+1} = theta_t - eta grad_theta U(theta_t; A_t x),      t = 0 .. k-1
    L           = L(theta_k)

A_t is what step t sees: an augmentation of all points, or of a random part of them with their weights raised so that
they sum to the same. With g_t = grad_theta U(theta_t; A_t x), the adjoint runs backwards from lambda_k = dL/dtheta_k:

    s_t       = < g_t, lambda_{t+1} >
    dL/dx    -= eta grad_x s_t
    dL/deta  -= s_t
    lambda_t  = lambda_{t+1} - eta grad_theta s_t

(labels and weights like x). It holds the graph of one step, whatever k is. Beside it stand parameter vectors: with B =
``stored`` the theta_t are kept at B places, and what lies between two of them is run again when it is needed, so that
at most B vectors for each power of B in k are held (32 for k <= 32, 64 for k <= 1024) at the price of one more forward
run for each power beyond the first. With ``stored`` >= k nothing is run twice.

With a spacing h, s_t = [U(theta_t + h lambda_{t+1}) - U(theta_t - h lambda_{t+1})] / (2 h): first derivatives only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pseudocoresets.divergences.captured_matching import captured_matching
from pseudocoresets.divergences.contrastive import STEP_SIZE
from pseudocoresets.divergences.estimator import detached_leaves, learned_tensors, with_gradient
from pseudocoresets.divergences.method import Points, Problem
from pseudocoresets.seeds import Randomness


class Descent(NamedTuple):
    """A loss with its gradient in what is learned, and where the descents ended (chains, parameters), no graph."""

    loss: Tensor
    end: Tensor


class Judgement(NamedTuple):
    """What is asked of the ends (chains, parameters): the loss, lambda_k = dL/dtheta_k, and h (chains, 1) if any."""

    loss: Tensor
    costate: Tensor
    spacing: Tensor | None


Judge: TypeAlias = Callable[[Tensor], Judgement]
View: TypeAlias = Callable[[Points], Points]
"""What one step sees of the points."""


def step_views(
    points: Points, problem: Problem, steps: int, points_per_step: int, randomness: Randomness
) -> list[View]:
    """A view for each step: ``points_per_step`` of the points (0: all), each under its own augmentation."""
    subsets = problem.subsets(steps, len(points.x), points_per_step, randomness)
    return [_view(problem, None if subsets is None else subsets[t], len(points.x), randomness) for t in range(steps)]


def _view(problem: Problem, subset: Tensor | None, count: int, randomness: Randomness) -> View:
    augment = problem.transformation(count if subset is None else len(subset), randomness)
    if subset is None:
        return lambda points: replace(points, x=augment(points.x))
    raised = count / len(subset)
    return lambda points: replace(
        points, x=augment(points.x[subset]), y=points.y[subset], weights=raised * points.weights[subset]
    )


def spacing_of_length(length: Tensor, costate: Tensor) -> Tensor:
    """h (chains, 1) such that h lambda_k has this length (chains, 1); the length itself where lambda_k is zero."""
    norm = costate.norm(dim=-1, keepdim=True)
    return length / norm.where(norm > torch.finfo(norm.dtype).tiny, 1.0)


def descend_by_adjoint(
    points: Points,
    problem: Problem,
    start: Tensor,
    views: Sequence[View],
    judge: Judge,
    stored: int,
    recurrent: bool = True,
) -> Descent:
    """One step for each view from ``start`` (chains, parameters), and the judge's loss with its gradient.

    ``recurrent = False`` keeps lambda as it is at the end.
    """
    leaves = detached_leaves(points)
    wanted = learned_tensors(leaves)
    trajectory = Trajectory(leaves.detached(), problem, views, stored)
    end = trajectory.forwards(start)
    loss, costate, spacing = judge(end)
    gradients = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    for t, theta in trajectory.backwards():
        change = step_gradients(leaves, wanted, problem, views[t], theta, costate, spacing)
        for name, gradient in change.learned.items():
            gradients[name] += gradient
        if recurrent:
            costate = costate + change.theta
    return Descent(with_gradient(loss, learned_tensors(points), gradients), end)


def descend_captured(
    points: Points,
    problem: Problem,
    start: Tensor,
    steps: int,
    points_per_step: int,
    judge: Judge,
    randomness: Randomness,
) -> Descent | None:
    """The same by differences on the fast path, or None where it does not apply; the judge must give a spacing."""
    step_size = "extra." + STEP_SIZE
    wanted = learned_tensors(points)
    if set(wanted) - {"x", "y", step_size}:
        return None
    captured = captured_matching(points, problem, len(start), steps, points_per_step, randomness)
    if captured is None:
        return None
    positions = captured.forwards(start)
    end = positions[-1]
    loss, costate, spacing = judge(end)
    assert spacing is not None
    captured.backwards(positions, costate, spacing.squeeze(1))
    gradients = {"x": captured.image_gradient, step_size: captured.step_size_gradient}
    if captured.label_gradient is not None:
        gradients["y"] = captured.label_gradient
    return Descent(with_gradient(loss, wanted, gradients), end)


class StepGradients(NamedTuple):
    theta: Tensor
    learned: Mapping[str, Tensor]


def step_gradients(
    leaves: Points,
    wanted: Mapping[str, Tensor],
    problem: Problem,
    view: View,
    theta: Tensor,
    costate: Tensor,
    spacing: Tensor | None,
) -> StepGradients:
    """The gradients of - eta < grad_theta U(theta; A x), lambda > in theta and in everything learned.

    With a ``spacing`` h, the product is a central difference of U.
    """
    theta = theta.detach().requires_grad_()
    with torch.enable_grad():
        if spacing is None:
            along = (potential_slope(leaves, problem, view, theta) * costate).sum()
        else:
            ends = torch.cat([theta + spacing * costate, theta - spacing * costate])
            above, below = potentials(leaves, problem, view, ends).chunk(2)
            along = ((above - below) / (2 * spacing.squeeze(-1))).sum()
        moved = -leaves.extras[STEP_SIZE] * along
    found = torch.autograd.grad(moved, [theta, *wanted.values()], allow_unused=True, materialize_grads=True)
    return StepGradients(found[0], dict(zip(wanted, found[1:], strict=True)))


class Trajectory:
    """The coreset's descent, whose positions can be had again from last to first without keeping them all."""

    def __init__(self, points: Points, problem: Problem, views: Sequence[View], stored: int) -> None:
        self._points = points
        self._problem = problem
        self._views = views
        self._stored = stored
        self._kept: list[Tensor] = []
        self.held = 0
        """Positions that are kept at this moment."""

    def forwards(self, start: Tensor) -> Tensor:
        """theta_k, keeping what ``backwards`` needs."""
        last = len(self._views)
        self._kept = self._keep(start, 0, last)
        return self._run(self._kept[-1], self._places(0, last)[-1], last)

    def backwards(self) -> Iterator[tuple[int, Tensor]]:
        """(t, theta_t) for t = k - 1 .. 0, once."""
        yield from self._unwind(self._kept, 0, len(self._views))

    def _unwind(self, kept: list[Tensor], first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """(t, theta_t) for t = last - 1 .. first, from the positions at this stretch's places."""
        places = self._places(first, last)
        for place in reversed(places):
            position = kept.pop()
            if places.step == 1:
                yield place, position
            else:
                end = min(place + places.step, last)
                yield from self._unwind(self._keep(position, place, end), place, end)
            self.held -= 1

    def _keep(self, start: Tensor, first: int, last: int) -> list[Tensor]:
        """The positions at the places of a stretch."""
        places = self._places(first, last)
        kept = [start]
        for place in places[:-1]:
            kept.append(self._run(kept[-1], place, place + places.step))
        self.held += len(kept)
        return kept

    def _places(self, first: int, last: int) -> range:
        """Where a stretch is kept: at most ``stored`` places, a power of ``stored`` apart."""
        step = 1
        while step * self._stored < last - first:
            step *= self._stored
        return range(first, last, step)

    def _run(self, theta: Tensor, first: int, last: int) -> Tensor:
        for t in range(first, last):
            theta = theta.detach().requires_grad_()
            with torch.enable_grad():
                slope = potential_slope(self._points, self._problem, self._views[t], theta, again=False)
            theta = (theta - self._points.extras[STEP_SIZE] * slope).detach()
        return theta


def potential_slope(points: Points, problem: Problem, view: View, theta: Tensor, again: bool = True) -> Tensor:
    """grad_theta U(theta; A x), differentiable once more unless ``again`` is False."""
    (slope,) = torch.autograd.grad(potentials(points, problem, view, theta).sum(), theta, create_graph=again)
    return slope


def potentials(points: Points, problem: Problem, view: View, theta: Tensor) -> Tensor:
    seen = view(points)
    return problem.energy.potential(theta, seen.x, seen.y, seen.weights)
