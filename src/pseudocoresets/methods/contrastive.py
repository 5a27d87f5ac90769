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
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.registry import parse_name
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import STEP_SIZE
from pseudocoresets.kernels import KERNELS
from pseudocoresets.kernels.kernel import AnyKernel
from pseudocoresets.methods.method import Hyperparameter, Loss, Problem


class Phases(NamedTuple):
    """The chains' starts, theta+ and theta-, each (chains, parameters)."""

    start: Tensor
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class ContrastiveDivergence:
    """N = ``chains`` chains of k = ``steps`` steps of size ``step_size`` from snapshots perturbed by ``sigma``."""

    expert_epochs: int = 2
    max_start_epoch: int | None = 10
    chains: int = 1
    steps: int = 100
    step_size: float = 0.01
    sigma: float = 0.001
    step_size_learning_rate: float = 0.0
    kernel: str = "langevin"
    """A sampler and its options, such as ``sghmc:momentum_decay=0.5`` or ``hmc:leapfrog_steps=5``."""

    def __post_init__(self) -> None:
        if self.expert_epochs < 0 or self.chains < 1 or self.steps < 1 or self.sigma < 0:
            raise InputError(
                "Contrastive divergence needs expert_epochs >= 0, chains >= 1, steps >= 1 and sigma >= 0; got "
                f"expert_epochs={self.expert_epochs}, chains={self.chains}, steps={self.steps}, sigma={self.sigma}."
            )
        if self.step_size_learning_rate < 0 or (self.step_size_learning_rate > 0 and self.expert_epochs == 0):
            raise InputError(
                "Contrastive divergence learns its step size from the expert's lead: that needs expert_epochs >= 1 "
                f"and a positive rate; got expert_epochs={self.expert_epochs} and {self.step_size_learning_rate}."
            )
        build_kernel(self.kernel, self.step_size)

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        if self.step_size_learning_rate == 0:
            return {}
        return {STEP_SIZE: Hyperparameter(self.step_size, self.step_size_learning_rate)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        phases = self.sample_phases(points, problem, randomness)
        loss = phase_difference(points, problem, phases.positive, phases.negative, randomness)
        if STEP_SIZE not in points.hyperparameters:
            return loss
        step_size = points.hyperparameters[STEP_SIZE]
        matched = (step_size - step_size.detach()) * step_size_slope(phases, step_size.detach())
        return loss._replace(value=loss.value + matched, terms={**loss.terms, STEP_SIZE: step_size.detach()})

    def sample_phases(self, points: Points, problem: Problem, randomness: Randomness) -> Phases:
        """Where the chains start and end, and the experts, without a graph."""
        if problem.experts is None:
            raise InputError("Contrastive divergence needs experts; train some first.")
        draw = problem.experts.draw(self.chains, self.max_start_epoch, self.expert_epochs, randomness)
        start = perturbed(draw.start, self.sigma, randomness)
        positive = start if self.expert_epochs == 0 else perturbed(draw.later, self.sigma, randomness)
        step_size = (
            float(points.hyperparameters[STEP_SIZE].detach()) if STEP_SIZE in points.hyperparameters else self.step_size
        )
        kernel = build_kernel(self.kernel, step_size)
        negative = problem.run_chain(kernel, start, points, self.steps, randomness)
        return Phases(start, positive, negative)


def step_size_slope(phases: Phases, step_size: Tensor) -> Tensor:
    """dL/deta as above, the mean over chains."""
    lead = (phases.positive - phases.start).square().sum(-1)
    missed = ((phases.negative - phases.positive) * (phases.negative - phases.start)).sum(-1)
    return (missed / lead).mean() / step_size


def build_kernel(name: str, step_size: float) -> AnyKernel:
    """The kernel that ``name`` describes, ``"hmc"`` or ``"hmc:leapfrog_steps=5"``."""
    plain, options = parse_name(name, "sampler")
    build = KERNELS[plain]
    try:
        return build(step_size=step_size, **options)
    except TypeError as error:
        raise InputError(f"The sampler '{plain}' does not take these options: {error}.") from None


def phase_difference(
    points: Points, problem: Problem, positive: Tensor, negative: Tensor, randomness: Randomness
) -> Loss:
    """mean_j E(x, theta+_j) - mean_j E(x, theta-_j), per datum, both under the same augmentation of x."""
    x = problem.transformation(len(points.x), randomness)(points.x)
    energies = problem.energies(torch.cat([positive, negative]).detach(), x, points)
    up, down = energies[: len(positive)].mean(), energies[len(positive) :].mean()
    terms = {"positive": up.detach(), "negative": down.detach()}
    return Loss(up - down, terms, energies=tuple(terms))


def perturbed(theta: Tensor, sigma: float, randomness: Randomness) -> Tensor:
    """theta + sigma N(0, I)."""
    if sigma == 0:
        return theta
    noise = torch.randn(theta.shape, generator=randomness.device, device=theta.device, dtype=theta.dtype)
    return theta + sigma * noise
