"""Contrastive divergence, as the paper defines it (``expert_epochs = 0``) and paired (``expert_epochs > 0``).

For q an approximation of the full-data posterior and Pi a kernel that leaves the coreset posterior invariant,

    L = KL(q || pi_x) - KL(Pi^k q || pi_x)

and its gradient is estimated by

    grad_x L ~= grad_x (1/N) sum_j [ E(x, theta+_j) - E(x, stopgrad(theta-_j)) ].

theta- is the end of ``steps`` kernel steps on the coreset from theta_s + sigma N(0, I), where theta_s is an expert's
snapshot. With ``expert_epochs = 0``, theta+ is where that chain started. With ``expert_epochs = a``, theta+ is the same
expert a epochs later: the full-data chain and the coreset chain start at the same place, and the coreset is moved
until they agree.

With ``step_size_learning_rate`` > 0 the chain's step size eta is learned too, so that the chain goes as far as the
expert leads. It follows the gradient of || theta- - theta+ ||^2 / (2 || theta+ - theta_s ||^2) with the chain's path
taken to grow in proportion to eta:

    dL/deta = < theta- - theta+, theta- - theta_s > / (eta || theta+ - theta_s ||^2).

No second derivatives and no unrolled graph: memory does not grow with ``steps``. An unadjusted kernel sees the coreset
under a fresh augmentation at each step; one that accepts or rejects (``hmc``, ``mala``) under one for the whole chain,
because it is exact only for a potential that stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import STEP_SIZE
from pseudocoresets.kernels import AnyKernel, build_kernel, is_adjusted, with_step_size
from pseudocoresets.methods.estimator import phase_difference
from pseudocoresets.methods.method import GradientMethod, Hyperparameter, Loss
from pseudocoresets.methods.problem import Problem


class Phases(NamedTuple):
    """The chains' starts, theta+ and theta-, each (chains, parameters)."""

    start: Tensor
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class ContrastiveDivergence(GradientMethod):
    """N = ``chains`` chains of k = ``steps`` steps of size ``step_size`` from snapshots perturbed by ``sigma``."""

    expert_epochs: int = 2
    max_start_epoch: int | None = 10
    chains: int = 1
    steps: int = 100
    step_size: float = 0.01
    sigma: float = 0.001
    step_size_learning_rate: float = 0.0
    kernel: str | AnyKernel = "langevin"
    """A sampler with a step size of its own, or the name of one and its options, such as ``hmc:leapfrog_steps=5``."""

    name: ClassVar[str] = "cd"

    def __post_init__(self) -> None:
        self.require_at_least(expert_epochs=0, chains=1, steps=1, sigma=0)
        if self.step_size_learning_rate < 0 or (self.step_size_learning_rate > 0 and self.expert_epochs == 0):
            raise InputError(
                "Contrastive divergence learns its step size from the expert's lead: that needs expert_epochs >= 1 "
                f"and a positive rate; got expert_epochs={self.expert_epochs} and {self.step_size_learning_rate}."
            )
        build_kernel(self.kernel, self.step_size)

    @property
    def repeats(self) -> bool:
        return self.step_size_learning_rate == 0 and not is_adjusted(build_kernel(self.kernel, self.step_size))

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        if self.step_size_learning_rate == 0:
            return {}
        first = build_kernel(self.kernel, self.step_size).step_size
        return {STEP_SIZE: Hyperparameter(first, self.step_size_learning_rate)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        phases = self.sample_phases(points, problem, randomness)
        loss = phase_difference(points, problem, phases.positive, phases.negative, randomness)
        if STEP_SIZE not in points.hyperparameters:
            return loss
        step_size = points.hyperparameters[STEP_SIZE]
        matched = (step_size - step_size.detach()) * step_size_gradient(phases, step_size.detach())
        return loss._replace(value=loss.value + matched, terms={**loss.terms, STEP_SIZE: step_size.detach()})

    def sample_phases(self, points: Points, problem: Problem, randomness: Randomness) -> Phases:
        """Where the chains start and end, and the experts, without a graph."""
        draw = problem.draw(self.title, self.chains, self.max_start_epoch, self.expert_epochs, randomness)
        start = problem.perturbed(draw.start, self.sigma, points, randomness)
        positive = start if self.expert_epochs == 0 else problem.perturbed(draw.later, self.sigma, points, randomness)
        kernel = build_kernel(self.kernel, self.step_size)
        if STEP_SIZE in points.hyperparameters:
            kernel = with_step_size(kernel, float(points.hyperparameters[STEP_SIZE].detach()))
        negative = problem.run_chain(kernel, start, points, self.steps, randomness)
        return Phases(start, positive, negative)


def step_size_gradient(phases: Phases, step_size: Tensor) -> Tensor:
    """dL/deta as above, the mean over chains."""
    lead = (phases.positive - phases.start).square().sum(-1)
    missed = ((phases.negative - phases.positive) * (phases.negative - phases.start)).sum(-1)
    return (missed / lead).mean() / step_size
