"""Wasserstein distance of means by matching trajectories: BPC-W (Kim et al. 2022), after MTT (Cazenavette et al. 2022).

Between two Gaussians of the same covariance the squared Wasserstein distance is that of their means; covariances are
not fitted, and where rows lose theirs, what they started from is returned. The means are
the ends of two trajectories from the same snapshot theta_s of an expert, and the loss is their distance in units
of the expert's own step:

    theta_{t+1} = theta_t - eta grad_theta U(theta_t; A_t x),      t = 0 .. k-1,   theta_0 = theta_s
    L           = || theta_k - theta* ||^2 / || theta_s - theta* ||^2,             theta* = theta_{s + a}

with a = ``expert_epochs``. A_t is the augmentation of step t, on all points or on ``points_per_step`` of them. The step
size eta is learned too, with its own learning rate. L depends on x through all k steps; ``gradient`` is how it is
differentiated (see ``gradients``), from

    lambda_k = dL/dtheta_k = 2 (theta_k - theta*) / || theta_s - theta* ||^2.

For differences, h lambda_k is ``radius`` (theta_k - theta*). Moving the points by a finite amount, the loss falls
further along the differences of radius 0.3 than along the exact gradient, and coresets come out as good or better in
half the time (docs/research-notes.md), so they are the default. On the fast path of a GPU they cost three gradients per
step, if only images, labels and step size are learned.

Defaults are those of the authors' code for ten images per class: k = 30, eta starts at 0.03 and learns at 1e-5, starts
before the 20th epoch; a = 1, and 2 at one and twenty images per class. At one image per class also k = 50,
eta = 0.01 learning at 1e-7, and starts before the 2nd epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import Draw
from pseudocoresets.core.state import STEP_SIZE, Motion, at_rest
from pseudocoresets.gradients import Differences, GradientEstimator, Outcome, Stored, Terminal, build_gradient
from pseudocoresets.kernels.kernel import positive_step_size
from pseudocoresets.methods.method import GradientMethod, Hyperparameter, Loss
from pseudocoresets.methods.problem import Problem


@dataclass(frozen=True)
class Wasserstein(GradientMethod):
    """k = ``steps`` differentiable steps, whose size starts at ``step_size``."""

    expert_epochs: int = 1
    max_start_epoch: int | None = 19
    chains: int = 1
    steps: int = 30
    step_size: float = 0.03
    step_size_learning_rate: float = 1e-5
    gradient: str | GradientEstimator = "differences"
    """An estimator of ``gradients``, or the name of one and its options, such as ``differences:radius=1.0``."""
    points_per_step: int = 0
    """How many of the points each step sees, chosen at random; 0: all of them."""

    name: ClassVar[str] = "wasserstein"

    def __post_init__(self) -> None:
        self.require_at_least(expert_epochs=1, chains=1, steps=1, points_per_step=0, step_size_learning_rate=0)
        positive_step_size(self.step_size)
        build_gradient(self.gradient)

    @property
    def repeats(self) -> bool:
        return isinstance(build_gradient(self.gradient), Differences | Stored)

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        return {STEP_SIZE: Hyperparameter(self.step_size, self.step_size_learning_rate)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        draw = problem.draw(self.title, self.chains, self.max_start_epoch, self.expert_epochs, randomness)
        value = self.match(points, problem, draw, randomness).loss
        return Loss(value, {STEP_SIZE: points.hyperparameters[STEP_SIZE].detach()})

    def match(self, points: Points, problem: Problem, draw: Draw, randomness: Randomness) -> Outcome:
        """The loss for pairs of snapshots, averaged over chains, and where the chains end."""
        frame = problem.frame(points)
        pair = Draw(frame.enter(draw.start), frame.enter(draw.later))
        descent = replace(problem.descent(points, self.steps, self.points_per_step), energy=frame.energy)
        found = build_gradient(self.gradient).differentiate(
            descent, at_rest(pair.start), partial(relative_distance, pair), problem.backend, randomness
        )
        return Outcome(found.loss, Motion(frame.leave(found.end.position), found.end.velocity))


def relative_distance(pair: Draw, end: Tensor) -> Terminal:
    """mean over chains of || theta_k - theta* ||^2 / || theta_s - theta* ||^2; its length is || theta_k - theta* ||."""
    whole = (pair.start - pair.later).square().sum(-1, keepdim=True)
    missed = end - pair.later
    squared = missed.square().sum(-1, keepdim=True)
    return Terminal((squared / whole).mean(), 2 * missed / (whole * len(end)), squared.sqrt())
