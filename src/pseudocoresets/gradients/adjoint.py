"""Gradients through a coreset's descent, by its adjoint, for whatever is asked of the place where it ends.

    v_{t+1}     = mu v_t + grad_theta U(theta_t; A_t x),           t = 0 .. k-1
    theta_{t+1} = theta_t - eta v_{t+1}
    L           = L(theta_k)

A_t is what step t sees: an augmentation of all points, or of a random part of them with their weights raised so that
they sum to the same. With g_t = grad_theta U(theta_t; A_t x), the adjoint runs backwards from lambda_k = dL/dtheta_k
and q_k = 0:

    q_t       = lambda_{t+1} + mu q_{t+1}
    s_t       = < g_t, q_t >
    dL/dx    -= eta grad_x s_t
    dL/deta  -= < v_{t+1}, lambda_{t+1} >
    lambda_t  = lambda_{t+1} - eta grad_theta s_t

(labels and weights like x). Without momentum (mu = 0), q_t is lambda_{t+1} and v_{t+1} is g_t. It holds the graph of
one step, whatever k is. Beside it stand states theta_t, v_t: with B = ``stored`` they are kept at B places, and what
lies between two of them is run again when it is needed, so that at most B states for each power of B in k are held (32
for k <= 32, 64 for k <= 1024) at the price of one more forward run for each power beyond the first. With ``stored`` >=
k nothing is run twice.

With a spacing h, s_t = [U(theta_t + h q_t) - U(theta_t - h q_t)] / (2 h): first derivatives only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import STEP_SIZE, Motion
from pseudocoresets.gradients.captured import captured_matching
from pseudocoresets.methods.estimator import detached_leaves, learned_tensors, with_gradient
from pseudocoresets.methods.method import Problem


class Descent(NamedTuple):
    """A loss with its gradient in what is learned, and where the chains are at the end, no graph."""

    loss: Tensor
    end: Motion


class Judgement(NamedTuple):
    """What is asked of the ends (chains, parameters): the loss, lambda_k = dL/dtheta_k, and h (chains, 1) if any."""

    loss: Tensor
    costate: Tensor
    spacing: Tensor | None


OF_STEP_SIZE = "extra." + STEP_SIZE
"""The name of the step size among what is learned."""
Judge: TypeAlias = Callable[[Tensor], Judgement]
View: TypeAlias = Callable[[Points], Points]
"""What one step sees of the points."""


def require_descent(gradient: str, known: Sequence[str], step_size: float, reach: float) -> None:
    """Raise unless the gradient is one of those known, and the step size and the reach are positive."""
    if gradient not in known:
        raise InputError(f"The gradient must be one of {', '.join(known)}; got '{gradient}'.")
    if not step_size > 0 or not reach > 0:
        raise InputError(f"The step size and the reach must be positive; got {step_size} and {reach}.")


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
    start: Motion,
    views: Sequence[View],
    judge: Judge,
    stored: int,
    momentum: float = 0.0,
    recurrent: bool = True,
) -> Descent:
    """One step for each view from ``start``, and the judge's loss with its gradient.

    ``recurrent = False`` keeps lambda as it is at the end.
    """
    leaves = detached_leaves(points)
    wanted = learned_tensors(leaves)
    trajectory = Trajectory(leaves.detached(), problem, views, stored, momentum)
    end = trajectory.forwards(start)
    loss, costate, spacing = judge(end.position)
    pull = costate
    following = end.position
    gradients = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    for t, theta in trajectory.backwards():
        change = step_gradients(leaves, wanted, problem, views[t], theta, pull, spacing)
        for name, gradient in change.learned.items():
            gradients[name] += gradient
        if OF_STEP_SIZE in wanted:
            velocity = (theta - following) / leaves.hyperparameters[STEP_SIZE].detach()
            gradients[OF_STEP_SIZE] -= (velocity * costate).sum()
        if recurrent:
            costate = costate + change.theta
        pull = costate + momentum * pull
        following = theta
    return Descent(with_gradient(loss, learned_tensors(points), gradients), end)


def run_forwards(
    points: Points,
    problem: Problem,
    start: Motion,
    steps: int,
    points_per_step: int,
    randomness: Randomness,
    momentum: float = 0.0,
) -> Motion:
    """Where the same descent ends, with nothing asked of it; on the fast path where that applies."""
    fixed = points.detached()
    captured = captured_matching(fixed, problem, len(start.position), steps, points_per_step, randomness, momentum)
    if captured is not None:
        return captured.forwards(start)[-1]
    views = step_views(fixed, problem, steps, points_per_step, randomness)
    return Trajectory(fixed, problem, views, steps, momentum).run(start)


def descend_captured(
    points: Points,
    problem: Problem,
    start: Motion,
    steps: int,
    points_per_step: int,
    judge: Judge,
    randomness: Randomness,
    momentum: float = 0.0,
) -> Descent | None:
    """The same by differences on the fast path, or None where it does not apply; the judge must give a spacing."""
    wanted = learned_tensors(points)
    if set(wanted) - {"x", "y", OF_STEP_SIZE}:
        return None
    chains = len(start.position)
    captured = captured_matching(points, problem, chains, steps, points_per_step, randomness, momentum)
    if captured is None:
        return None
    motions = captured.forwards(start)
    end = motions[-1]
    loss, costate, spacing = judge(end.position)
    assert spacing is not None
    captured.backwards(motions, costate, spacing.squeeze(1))
    gradients = {"x": captured.image_gradient, OF_STEP_SIZE: captured.step_size_gradient}
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
    pull: Tensor,
    spacing: Tensor | None,
) -> StepGradients:
    """The gradients of - eta < grad_theta U(theta; A x), q > in theta and in everything learned but eta.

    With a ``spacing`` h, the product is a central difference of U.
    """
    theta = theta.detach().requires_grad_()
    with torch.enable_grad():
        if spacing is None:
            along = (potential_slope(leaves, problem, view, theta) * pull).sum()
        else:
            ends = torch.cat([theta + spacing * pull, theta - spacing * pull])
            above, below = potentials(leaves, problem, view, ends).chunk(2)
            along = ((above - below) / (2 * spacing.squeeze(-1))).sum()
        moved = -leaves.hyperparameters[STEP_SIZE].detach() * along
    found = torch.autograd.grad(moved, [theta, *wanted.values()], allow_unused=True, materialize_grads=True)
    return StepGradients(found[0], dict(zip(wanted, found[1:], strict=True)))


class Trajectory:
    """The coreset's descent, whose positions can be had again from last to first without keeping them all."""

    def __init__(
        self, points: Points, problem: Problem, views: Sequence[View], stored: int, momentum: float = 0.0
    ) -> None:
        self._points = points
        self._problem = problem
        self._views = views
        self._stored = stored
        self._momentum = momentum
        self._kept: list[Motion] = []
        self.held = 0
        """States that are kept at this moment."""

    def run(self, start: Motion) -> Motion:
        """theta_k and v_k, keeping nothing."""
        return self._run(start, 0, len(self._views))

    def forwards(self, start: Motion) -> Motion:
        """theta_k and v_k, keeping what ``backwards`` needs."""
        last = len(self._views)
        self._kept = self._keep(start, 0, last)
        return self._run(self._kept[-1], self._places(0, last)[-1], last)

    def backwards(self) -> Iterator[tuple[int, Tensor]]:
        """(t, theta_t) for t = k - 1 .. 0, once."""
        yield from self._unwind(self._kept, 0, len(self._views))

    def _unwind(self, kept: list[Motion], first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """(t, theta_t) for t = last - 1 .. first, from the states at this stretch's places."""
        places = self._places(first, last)
        for place in reversed(places):
            motion = kept.pop()
            if places.step == 1:
                yield place, motion.position
            else:
                end = min(place + places.step, last)
                yield from self._unwind(self._keep(motion, place, end), place, end)
            self.held -= 1

    def _keep(self, start: Motion, first: int, last: int) -> list[Motion]:
        """The states at the places of a stretch."""
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

    def _run(self, motion: Motion, first: int, last: int) -> Motion:
        position, velocity = motion
        for t in range(first, last):
            theta = position.detach().requires_grad_()
            with torch.enable_grad():
                slope = potential_slope(self._points, self._problem, self._views[t], theta, again=False)
            velocity = self._momentum * velocity + slope
            position = (theta - self._points.hyperparameters[STEP_SIZE] * velocity).detach()
        return Motion(position, velocity)


def potential_slope(points: Points, problem: Problem, view: View, theta: Tensor, again: bool = True) -> Tensor:
    """grad_theta U(theta; A x), differentiable once more unless ``again`` is False."""
    (slope,) = torch.autograd.grad(potentials(points, problem, view, theta).sum(), theta, create_graph=again)
    return slope


def potentials(points: Points, problem: Problem, view: View, theta: Tensor) -> Tensor:
    seen = view(points)
    return problem.energy.potential(theta, seen.x, seen.y, seen.weights)
