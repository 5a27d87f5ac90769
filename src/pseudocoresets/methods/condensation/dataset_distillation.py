"""Dataset distillation: images and step sizes that train a network in a few steps (Wang et al. 2018).

From a fresh initialisation theta_0, a network takes T = ``steps`` x ``epochs`` steps on the synthetic images, each on a
part of them and with a size of its own, and images and step sizes descend the real data's loss at the end:

    theta_{t+1} = theta_t - eta_t grad_theta U(theta_t; x_{B_t}),      t = 0 .. T-1
    L(x, eta)   = - mean over a batch of real data of log p(y_real | x_real, theta_T)

averaged over ``networks`` initialisations. The parts are the same in every epoch: step t sees the r-th image of each
class if r = t modulo the smaller of ``steps`` and the images per class, so that ten images per class and ten steps make
one image per class and step, as in the authors' code. They are found once, and kept in the checkpoint. U is the mean
cross-entropy of the part, with the prior's - log pi0(theta) / n, and is augmented only where the construction is told
to.

Defaults are those of the authors' code, 10 steps and 3 epochs, batches of 1024, step sizes from 0.02 (CIFAR-10: 0.001),
all by Adam at the rate 0.01. They learn eta through a softplus, along which the rate 0.01 is one of about 0.01 eta;
here eta has a rate of its own. They judge the images by the very steps that were learned, in their order, which are
recorded in the file: so does the protocol ``point`` with ``--learned-steps``, as the preset ``paper`` has it. Elsewhere
the images are judged like any coreset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import STEP_SIZE, at_rest
from pseudocoresets.gradients import Differences, GradientEstimator, Stored, build_gradient
from pseudocoresets.kernels.kernel import positive_step_size
from pseudocoresets.methods.bptt import real_energy
from pseudocoresets.methods.estimator import fresh_parameters, network_of
from pseudocoresets.methods.method import GradientMethod, Hyperparameter, Loss
from pseudocoresets.methods.problem import Problem


@dataclass(frozen=True)
class DatasetDistillation(GradientMethod):
    """``steps`` x ``epochs`` differentiable steps from fresh initialisations, with a learned size for each."""

    steps: int = 10
    epochs: int = 3
    step_size: float = 0.02
    step_size_learning_rate: float = 2e-4
    batch_size: int = 1024
    networks: int = 1
    gradient: str | GradientEstimator = "stored"
    """An estimator of ``gradients``, or the name of one and its options, such as ``differences:radius=1.0``."""

    name: ClassVar[str] = "dd"
    needs_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.require_at_least(steps=1, epochs=1, batch_size=1, networks=1, step_size_learning_rate=0)
        positive_step_size(self.step_size)
        build_gradient(self.gradient)

    @property
    def repeats(self) -> bool:
        return isinstance(build_gradient(self.gradient), Differences | Stored)

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        sizes = (self.step_size,) * (self.steps * self.epochs)
        return {STEP_SIZE: Hyperparameter(sizes, self.step_size_learning_rate)}

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        start = fresh_parameters(network_of(problem, self.name), self.networks, points.x, randomness)
        x, y = problem.real_batch(self.title, self.batch_size, randomness)
        state = dict(points.state) or {f"part {t}": part for t, part in enumerate(step_parts(points, self.steps))}
        parts = [state[f"part {t}"] for t in range(self.steps)]
        descent = replace(problem.descent(points, self.steps * self.epochs), subsets=parts * self.epochs)
        found = build_gradient(self.gradient).differentiate(
            descent, at_rest(start), partial(real_energy, problem, x, y, start, 0.0), problem.backend, randomness
        )
        return Loss(found.loss, {STEP_SIZE: points.hyperparameters[STEP_SIZE].detach().mean()}, state)


def step_parts(points: Points, steps: int) -> list[Tensor]:
    """The positions that each step of an epoch sees: every image of a class in turn, of all classes together."""
    labels = points.y.detach().argmax(-1) if points.y.is_floating_point() else points.y
    of_class = labels[:, None] == labels.unique()
    ranks = (of_class.cumsum(0) - 1)[of_class]
    parts = min(steps, int(ranks.max()) + 1)
    return [torch.nonzero(ranks % parts == step % parts).squeeze(1) for step in range(steps)]
