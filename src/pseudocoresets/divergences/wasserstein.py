"""Wasserstein distance by matching trajectories: BPC-W (Kim et al. 2022), after MTT (Cazenavette et al. 2022).

Between two Gaussians of the same covariance the squared Wasserstein distance is that of their means. The means are
the ends of two trajectories from the same snapshot theta_s of an expert, and the loss is their distance in units
of the expert's own step:

    theta_{t+1} = theta_t - eta grad_theta U(theta_t; A_t x),      t = 0 .. k-1,   theta_0 = theta_s
    L           = || theta_k - theta* ||^2 / || theta_s - theta* ||^2,             theta* = theta_{s + ahead}

A_t is the augmentation of step t. The step size eta is learned too, with its own learning rate. L depends on x through
all k steps. Its gradient is found in one of four ways:

constant-memory is exact. With g_t = grad_theta U(theta_t; A_t x), the adjoint runs backwards from
lambda_k = 2 (theta_k - theta*) / || theta_s - theta* ||^2:

    s_t       = < g_t, lambda_{t+1} >
    dL/dx    -= eta grad_x s_t
    dL/deta  -= s_t
    lambda_t  = lambda_{t+1} - eta grad_theta s_t

(labels and weights like x). It holds the graph of one step, whatever k is. Beside it stand parameter vectors: with B =
``stored`` the theta_t are kept at B places, and what lies between two of them is run again when it is needed, so that
at most B vectors for each power of B in k are held (32 for k <= 32, 64 for k <= 1024) at the price of one more forward
run for each power beyond the first. With ``stored`` >= k nothing is run twice. Vectors are small beside graphs: the
graph of one step holds the activations of all m points.

unrolled is automatic differentiation through all k steps: the same gradient, and memory for k graphs.

differences is the same recursion with s_t = [U(theta_t + h lambda_{t+1}) - U(theta_t - h lambda_{t+1})] / (2 h), where
h lambda_k = ``reach`` (theta_k - theta*): first derivatives only. For a smooth U it is exact to second order in h. A
network of ReLUs is not smooth: the descent jumps where a unit switches, which the exact derivative does not see and a
difference does. Moving the points by a finite amount, the loss falls further along the differences of reach 0.3 than
along the exact gradient, and coresets come out as good or better in half the time (docs/research-notes.md), so this is
the default. On the fast path of a GPU it costs three gradients a step, if only images and step size are learned.

detached is the constant-memory rewriting of TESLA (Cui et al. 2023), which evaluates each step's gradient at
parameters held fixed (lambda_t = lambda_k throughout): cheaper by a third, and not the exact gradient.

Defaults are those of the authors' code for ten images a class: k = 30, eta starts at 0.03 and learns at 1e-5, starts
before the 20th epoch; one epoch ahead, two at one and twenty images a class. At one image a class also k = 50,
eta = 0.01 learning at 1e-7, and starts before the 2nd epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.divergences.captured_matching import captured_matching
from pseudocoresets.divergences.contrastive import STEP_SIZE
from pseudocoresets.divergences.estimator import (
    detached_leaves,
    draw_pairs,
    learned_tensors,
    require_at_least,
    with_gradient,
)
from pseudocoresets.divergences.method import Extra, Loss, Points, Problem
from pseudocoresets.errors import InputError
from pseudocoresets.experts.store import Draw
from pseudocoresets.seeds import Randomness

GRADIENTS = ("differences", "constant-memory", "unrolled", "detached")


class Match(NamedTuple):
    """The trajectory-matching loss and where the coreset's trajectory ended (chains, parameters), without a graph."""

    loss: Tensor
    end: Tensor


@dataclass(frozen=True)
class Wasserstein:
    """k = ``steps`` differentiable steps, whose size starts at ``step_size``."""

    ahead: int = 1
    latest_start: int | None = 19
    chains: int = 1
    steps: int = 30
    step_size: float = 0.03
    step_size_learning_rate: float = 1e-5
    gradient: str = "differences"
    stored: int = 32
    reach: float = 0.3

    def __post_init__(self) -> None:
        require_at_least(
            "The Wasserstein method",
            ahead=(self.ahead, 1),
            chains=(self.chains, 1),
            steps=(self.steps, 1),
            stored=(self.stored, 2),
            step_size_learning_rate=(self.step_size_learning_rate, 0),
        )
        if self.gradient not in GRADIENTS:
            raise InputError(f"The gradient must be one of {', '.join(GRADIENTS)}; got '{self.gradient}'.")
        if not self.step_size > 0 or not self.reach > 0:
            raise InputError(f"The step size and the reach must be positive; got {self.step_size} and {self.reach}.")

    def extras(self) -> Mapping[str, Extra]:
        return {STEP_SIZE: Extra(self.step_size, self.step_size_learning_rate)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        draw = draw_pairs(problem, "The Wasserstein method", self.chains, self.latest_start, self.ahead, randomness)
        value = self.match(points, problem, draw, randomness).loss
        return Loss(value, {STEP_SIZE: points.extras[STEP_SIZE].detach()})

    def match(self, points: Points, problem: Problem, draw: Draw, randomness: Randomness) -> Match:
        """The loss for a pair of snapshots, averaged over chains."""
        if self.gradient == "differences":
            captured = _by_captured_differences(points, problem, draw, self.steps, self.reach, randomness)
            if captured is not None:
                return captured
        augmentations = [problem.transformation(len(points.x), randomness) for _ in range(self.steps)]
        if self.gradient == "unrolled":
            return _unrolled(points, problem, draw, augmentations)
        reach = self.reach if self.gradient == "differences" else None
        return _by_adjoint(points, problem, draw, augmentations, self.stored, self.gradient != "detached", reach)


def _unrolled(points: Points, problem: Problem, draw: Draw, augmentations: Sequence[Transformation]) -> Match:
    theta = draw.start.detach().requires_grad_()
    for augment in augmentations:
        theta = theta - points.extras[STEP_SIZE] * _slope(points, problem, augment, theta)
    return Match(_relative_distance(theta, draw), theta.detach())


def _by_adjoint(
    points: Points,
    problem: Problem,
    draw: Draw,
    augmentations: Sequence[Transformation],
    stored: int,
    recurrent: bool,
    reach: float | None,
) -> Match:
    """The loss with its gradient from the adjoint recursion, by differences if there is a ``reach``.

    ``recurrent = False`` keeps lambda as it is at the end.
    """
    leaves = detached_leaves(points)
    wanted = learned_tensors(leaves)
    trajectory = Trajectory(leaves.detached(), problem, augmentations, stored)
    end = trajectory.forwards(draw.start)
    loss, costate = _last_costate(end, draw)
    spacing = None if reach is None else _spacing(reach, end, draw, costate)
    gradients = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    for t, theta in trajectory.backwards():
        change = _step_gradients(leaves, wanted, problem, augmentations[t], theta, costate, spacing)
        for name, gradient in change.learned.items():
            gradients[name] += gradient
        if recurrent:
            costate = costate + change.theta
    return Match(with_gradient(loss, learned_tensors(points), gradients), end)


class _StepGradients(NamedTuple):
    theta: Tensor
    learned: Mapping[str, Tensor]


def _step_gradients(
    leaves: Points,
    wanted: Mapping[str, Tensor],
    problem: Problem,
    augment: Transformation,
    theta: Tensor,
    costate: Tensor,
    spacing: Tensor | None,
) -> _StepGradients:
    """The gradients of - eta < grad_theta U(theta; A x), lambda > in theta and in everything learned.

    With a ``spacing`` h, the product is a central difference of U.
    """
    theta = theta.detach().requires_grad_()
    with torch.enable_grad():
        if spacing is None:
            along = (_slope(leaves, problem, augment, theta) * costate).sum()
        else:
            ends = torch.cat([theta + spacing * costate, theta - spacing * costate])
            above, below = _potentials(leaves, problem, augment, ends).chunk(2)
            along = ((above - below) / (2 * spacing.squeeze(-1))).sum()
        moved = -leaves.extras[STEP_SIZE] * along
    found = torch.autograd.grad(moved, [theta, *wanted.values()], allow_unused=True, materialize_grads=True)
    return _StepGradients(found[0], dict(zip(wanted, found[1:], strict=True)))


class Trajectory:
    """The coreset's descent, whose positions can be had again from last to first without keeping them all."""

    def __init__(self, points: Points, problem: Problem, augmentations: Sequence[Transformation], stored: int) -> None:
        self._points = points
        self._problem = problem
        self._augmentations = augmentations
        self._stored = stored
        self._kept: list[Tensor] = []
        self.held = 0
        """Positions that are kept at this moment."""

    def forwards(self, start: Tensor) -> Tensor:
        """theta_k, keeping what ``backwards`` needs."""
        last = len(self._augmentations)
        self._kept = self._keep(start, 0, last)
        return self._run(self._kept[-1], self._places(0, last)[-1], last)

    def backwards(self) -> Iterator[tuple[int, Tensor]]:
        """(t, theta_t) for t = k - 1 .. 0, once."""
        yield from self._unwind(self._kept, 0, len(self._augmentations))

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
                slope = _slope(self._points, self._problem, self._augmentations[t], theta, again=False)
            theta = (theta - self._points.extras[STEP_SIZE] * slope).detach()
        return theta


def _slope(points: Points, problem: Problem, augment: Transformation, theta: Tensor, again: bool = True) -> Tensor:
    """grad_theta U(theta; A x), differentiable once more unless ``again`` is False."""
    (slope,) = torch.autograd.grad(_potentials(points, problem, augment, theta).sum(), theta, create_graph=again)
    return slope


def _potentials(points: Points, problem: Problem, augment: Transformation, theta: Tensor) -> Tensor:
    return problem.energy.potential(theta, augment(points.x), points.y, points.weights)


def _last_costate(end: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """The loss at the end of the trajectories, and lambda_k = dL / dtheta_k."""
    with torch.enable_grad():
        last = end.detach().requires_grad_()
        loss = _relative_distance(last, draw)
    (costate,) = torch.autograd.grad(loss, last)
    return loss.detach(), costate


def _spacing(reach: float, end: Tensor, draw: Draw, costate: Tensor) -> Tensor:
    """h (chains, 1) such that h lambda_k has ``reach`` times the length of theta_k - theta*."""
    smallest = torch.finfo(end.dtype).tiny
    return (
        reach * (end - draw.later).norm(dim=-1, keepdim=True) / costate.norm(dim=-1, keepdim=True).clamp_min(smallest)
    )


def _by_captured_differences(
    points: Points, problem: Problem, draw: Draw, steps: int, reach: float, randomness: Randomness
) -> Match | None:
    """The differences on the fast path, or None where it does not apply."""
    step_size = "extra." + STEP_SIZE
    wanted = learned_tensors(points)
    matching = None if set(wanted) - {"x", step_size} else captured_matching(points, problem, steps, randomness)
    if matching is None:
        return None
    trajectories = [matching.forwards(start) for start in draw.start]
    end = torch.stack([positions[-1] for positions in trajectories])
    loss, costates = _last_costate(end, draw)
    spacings = _spacing(reach, end, draw, costates)
    for positions, costate, spacing in reversed(list(zip(trajectories, costates, spacings, strict=True))):
        matching.backwards(positions, costate, spacing.squeeze())
    gradients = {"x": matching.image_gradient, step_size: matching.step_size_gradient}
    return Match(with_gradient(loss, wanted, gradients), end)


def _relative_distance(theta: Tensor, draw: Draw) -> Tensor:
    """mean over chains of || theta - theta* ||^2 / || theta_s - theta* ||^2."""
    whole = (draw.start - draw.later).square().sum(-1)
    if not bool((whole > 0).all()):
        raise InputError("An expert did not move between the two snapshots; draw them further apart with 'ahead'.")
    return ((theta - draw.later).square().sum(-1) / whole).mean()
