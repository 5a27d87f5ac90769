"""Pseudo-coreset variational inference: the original Bayesian pseudo-coresets (Manousakas et al. 2020).

Points and weights minimise the reverse Kullback-Leibler divergence from the coreset's posterior pi_{x, w} to the full
one. With f_i(theta) = log p(y_i | x_i, theta) of a pseudo-point and F(theta) the full data's log-likelihood,

    grad_{w_i} KL = - Cov[ f_i,               F - sum_j w_j f_j ]
    grad_{x_i} KL = - Cov[ w_i grad_x f_i,    F - sum_j w_j f_j ]

under pi_{x, w}, each log-likelihood being centred over the samples. With e = - sum_j w_j f_j / n and r = -F / n both
are the gradients of

    (1 / (2 T)) Var_s[ e(theta_s) - r(theta_s) ]

times 1 / T, for samples theta_s held fixed: this is the loss, the divergence times the temperature T.
F is estimated on a batch of real data.

The authors draw the samples from a Laplace approximation of a logistic regression. For a network, where that is poor,
they come from the posterior itself: ``steps`` descent steps on the coreset find a mode, and S = ``samples`` Langevin
chains leave it for ``langevin_steps``. The descent starts from an expert's snapshot of at most
``max_start_epoch`` epochs; 0 is a fresh initialisation, and then, as in the original, no expert enters.

Defaults are the authors' where they carry over: 100 samples (``projection_dim``), 200 real points per gradient, weights
learned (non-negative; here they also keep their sum, the size of the full data).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.kernels import Langevin
from pseudocoresets.methods.estimator import (
    covariance_loss,
    descend,
    draw_kind,
    real_energies,
)
from pseudocoresets.methods.method import GradientMethod, Loss
from pseudocoresets.methods.problem import Problem


@dataclass(frozen=True)
class PseudocoresetVI(GradientMethod):
    """S = ``samples`` posterior samples, and ``batch_size`` real points for the full data's log-likelihood."""

    max_start_epoch: int | None = 0
    steps: int = 100
    step_size: float = 0.03
    samples: int = 100
    langevin_steps: int = 20
    batch_size: int = 200
    siamese: bool = False
    at_once: int = 10

    name: ClassVar[str] = "psvi"
    learns_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.require_at_least(steps=0, samples=2, langevin_steps=1, batch_size=1, at_once=1)

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        if not problem.energy.temperature > 0:
            raise InputError("PSVI needs a positive temperature: its samples must differ.")
        draw = problem.draw(self.title, 1, self.max_start_epoch, 0, randomness)
        samples = self.sample_coreset(points, problem, draw.start, randomness)
        kind = draw_kind(problem, self.siamese, randomness)
        real = real_energies(problem, self.title, samples, self.batch_size, randomness, self.at_once, kind)
        scale = problem.energy.data_size / problem.energy.temperature
        return covariance_loss(points, problem, samples, real, scale, randomness, self.at_once, kind)

    def sample_coreset(self, points: Points, problem: Problem, start: Tensor, randomness: Randomness) -> Tensor:
        """Samples (samples, parameters) of the coreset's posterior around the mode near ``start`` (1, size)."""
        mode = descend(points, problem, start, self.steps, self.step_size, randomness)
        plain, kernel = problem.without_augmentation(), Langevin(self.step_size)
        groups = mode.expand(self.samples, -1).split(self.at_once)
        return torch.cat([plain.run_chain(kernel, group, points, self.langevin_steps, randomness) for group in groups])
