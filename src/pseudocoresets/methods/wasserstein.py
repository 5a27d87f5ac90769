"""Wasserstein distance by matching trajectories: BPC-W (Kim et al. 2022), after MTT (Cazenavette et al. 2022).

Between two Gaussians of the same covariance the squared Wasserstein distance is that of their means. The means are
the ends of two trajectories from the same snapshot theta_s of an expert, and the loss is their distance in units
of the expert's own step:

    theta_{t+1} = theta_t - eta grad_theta U(theta_t; A_t x),      t = 0 .. k-1,   theta_0 = theta_s
    L           = || theta_k - theta* ||^2 / || theta_s - theta* ||^2,             theta* = theta_{s + ahead}

A_t is the augmentation of step t, on all points or on ``points_per_step`` of them. The step size eta is learned too,
with its own learning rate. L depends on x through all k steps. Its gradient is found in one of four ways:

constant-memory is exact: the adjoint of the descent (divergences/adjoint.py) from
lambda_k = 2 (theta_k - theta*) / || theta_s - theta* ||^2, holding the graph of one step whatever k is.

unrolled is automatic differentiation through all k steps: the same gradient, and memory for k graphs.

differences is the same recursion with differences of U at theta_t + h lambda_{t+1} and theta_t - h lambda_{t+1}, where
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import Draw
from pseudocoresets.core.state import STEP_SIZE, at_rest
from pseudocoresets.gradients.adjoint import (
    Descent,
    Judgement,
    View,
    descend_by_adjoint,
    descend_captured,
    potential_slope,
    require_descent,
    spacing_of_length,
    step_views,
)
from pseudocoresets.methods.estimator import draw_pairs, require_at_least
from pseudocoresets.methods.method import Hyperparameter, Loss, Problem

GRADIENTS = ("differences", "constant-memory", "unrolled", "detached")


@dataclass(frozen=True)
class Wasserstein:
    """k = ``steps`` differentiable steps, whose size starts at ``step_size``."""

    expert_epochs: int = 1
    max_start_epoch: int | None = 19
    chains: int = 1
    steps: int = 30
    step_size: float = 0.03
    step_size_learning_rate: float = 1e-5
    gradient: str = "differences"
    stored: int = 32
    reach: float = 0.3
    points_per_step: int = 0
    """How many of the points a step sees, chosen at random; 0: all of them."""

    def __post_init__(self) -> None:
        require_at_least(
            "The Wasserstein method",
            expert_epochs=(self.expert_epochs, 1),
            chains=(self.chains, 1),
            steps=(self.steps, 1),
            stored=(self.stored, 2),
            points_per_step=(self.points_per_step, 0),
            step_size_learning_rate=(self.step_size_learning_rate, 0),
        )
        require_descent(self.gradient, GRADIENTS, self.step_size, self.reach)

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        return {STEP_SIZE: Hyperparameter(self.step_size, self.step_size_learning_rate)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        draw = draw_pairs(
            problem, "The Wasserstein method", self.chains, self.max_start_epoch, self.expert_epochs, randomness
        )
        value = self.match(points, problem, draw, randomness).loss
        return Loss(value, {STEP_SIZE: points.hyperparameters[STEP_SIZE].detach()})

    def match(self, points: Points, problem: Problem, draw: Draw, randomness: Randomness) -> Descent:
        """The loss for a pair of snapshots, averaged over chains."""
        judge = partial(_judge, draw, self.reach if self.gradient == "differences" else None)
        if self.gradient == "differences":
            captured = descend_captured(
                points, problem, at_rest(draw.start), self.steps, self.points_per_step, judge, randomness
            )
            if captured is not None:
                return captured
        views = step_views(points, problem, self.steps, self.points_per_step, randomness)
        if self.gradient == "unrolled":
            return _unrolled(points, problem, draw, views)
        recurrent = self.gradient != "detached"
        return descend_by_adjoint(points, problem, at_rest(draw.start), views, judge, self.stored, recurrent=recurrent)


def _unrolled(points: Points, problem: Problem, draw: Draw, views: Sequence[View]) -> Descent:
    theta = draw.start.detach().requires_grad_()
    for view in views:
        theta = theta - points.hyperparameters[STEP_SIZE] * potential_slope(points, problem, view, theta)
    return Descent(_relative_distance(theta, draw), at_rest(theta.detach()))


def _judge(draw: Draw, reach: float | None, end: Tensor) -> Judgement:
    """The loss at the end of the trajectories, lambda_k, and h such that h lambda_k is ``reach`` (theta_k - theta*)."""
    with torch.enable_grad():
        last = end.detach().requires_grad_()
        loss = _relative_distance(last, draw)
    (costate,) = torch.autograd.grad(loss, last)
    if reach is None:
        return Judgement(loss.detach(), costate, None)
    missed = (end - draw.later).norm(dim=-1, keepdim=True)
    return Judgement(loss.detach(), costate, spacing_of_length(reach * missed, costate))


def _relative_distance(theta: Tensor, draw: Draw) -> Tensor:
    """mean over chains of || theta - theta* ||^2 / || theta_s - theta* ||^2."""
    whole = (draw.start - draw.later).square().sum(-1)
    return ((theta - draw.later).square().sum(-1) / whole).mean()
