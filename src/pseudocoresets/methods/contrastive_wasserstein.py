"""Contrastive divergence with a trajectory-matching term, the loss of the contrastive-divergence authors' code.

From a snapshot theta_s of an expert, with theta+ = theta_{s + a} the same expert a = ``expert_epochs`` epochs later and
theta_k the end of k differentiable descent steps on the coreset,

    L = E(x, theta+ + sigma xi) - E(x, sg(theta_k) + sigma xi')
        + weight * || theta_k - theta+ ||^2 / || theta_s - theta+ ||^2

with energies per datum. One trajectory serves both terms; sg stops the gradient in the first, and the second has the
gradient of the Wasserstein method. The published code takes theta+ = theta_s, where the second
denominator is zero, and lets the gradient of the first term run through the trajectory; so ``expert_epochs`` is at
least 1 here. Its chain has no Langevin noise, and neither has this one.

Defaults are those of that code where they make sense: three epochs ahead of a start before the 25th, k = 20 steps of
0.01, sigma = 0.001, weight 1; the step size is not learned there (``step_size_learning_rate = 0``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.gradients import GradientEstimator
from pseudocoresets.methods.estimator import phase_difference
from pseudocoresets.methods.method import GradientMethod, Hyperparameter, Loss
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.wasserstein import Wasserstein


@dataclass(frozen=True)
class ContrastiveWasserstein(GradientMethod):
    """The sum of the two losses, the second times ``weight``."""

    expert_epochs: int = 3
    max_start_epoch: int | None = 24
    chains: int = 1
    steps: int = 20
    step_size: float = 0.01
    step_size_learning_rate: float = 0.0
    sigma: float = 0.001
    weight: float = 1.0
    gradient: str | GradientEstimator = "differences"

    name: ClassVar[str] = "cd-wasserstein"

    def __post_init__(self) -> None:
        self.require_at_least(sigma=0, weight=0)
        self.matching()

    def matching(self) -> Wasserstein:
        """The second term's method."""
        return Wasserstein(
            self.expert_epochs,
            self.max_start_epoch,
            self.chains,
            self.steps,
            self.step_size,
            self.step_size_learning_rate,
            self.gradient,
        )

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        return self.matching().hyperparameters()

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        draw = problem.draw(self.title, self.chains, self.max_start_epoch, self.expert_epochs, randomness)
        match = self.matching().match(points, problem, draw, randomness)
        positive = problem.perturbed(draw.later, self.sigma, points, randomness)
        negative = problem.perturbed(match.end.position, self.sigma, points, randomness)
        contrast = phase_difference(points, problem, positive, negative, randomness)
        terms = {**contrast.terms, "distance": match.loss.detach()}
        return contrast._replace(value=contrast.value + self.weight * match.loss, terms=terms)
