"""Reverse Kullback-Leibler divergence by the score function: BPC-rKL (Kim et al. 2022).

With e(theta) = E(x, theta) / n the coreset's energy per datum, r(theta) the full data's, and pi_x the coreset's
posterior at temperature T,

    T grad_x KL(pi_x || pi) = (1 / T) Cov_pi_x[ grad_x e(theta), e(theta) - r(theta) ].

pi_x is taken to be N(theta_k, sigma^2 I) around the end of k steps  theta <- theta - eta grad U(theta)  on the coreset,
from an expert's snapshot. Such a Gaussian is the posterior of unit curvature at T = sigma^2, which is the temperature
used here. The covariance is that of S = ``samples`` draws, with both factors centred over them; the estimate is
the gradient of

    (1 / (2 sigma^2)) Var_s[ e(theta_s) - r(theta_s) ]

with the samples held fixed. As sigma goes to 0 this becomes  || grad_theta e(theta_k) - grad_theta r(theta_k) ||^2 / 2,
which is gradient matching. r is estimated on a batch of real data, which leaves the gradient unbiased.

Defaults are those of the authors' code for ten images per class: 30 samples (10 at one and twenty), sigma = 0.01,
1000 real images, k = 30, eta = 0.03, starts before the 20th epoch, no augmentation in the covariance (``siamese``
applies one kind of augmentation to real and synthetic points alike). Their learning rate 1000 belongs to a
gradient that is summed over the m points and not divided by sigma^2: here it is 1000 m sigma^2, 10 at ten
images in ten classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods.estimator import (
    covariance_loss,
    descend,
    draw_kind,
    gaussian_samples,
    real_energies,
)
from pseudocoresets.methods.method import GradientMethod, Loss
from pseudocoresets.methods.problem import Problem


@dataclass(frozen=True)
class ReverseKL(GradientMethod):
    """S = ``samples`` Gaussian samples, and ``batch_size`` real points for the full data's energy."""

    max_start_epoch: int | None = 19
    steps: int = 30
    step_size: float = 0.03
    samples: int = 30
    sigma: float = 0.01
    batch_size: int = 1000
    siamese: bool = False
    at_once: int = 10

    name: ClassVar[str] = "rkl"

    def __post_init__(self) -> None:
        self.require_at_least(steps=0, samples=2, batch_size=1, at_once=1)
        if not self.sigma > 0:
            raise InputError(f"The reverse KL needs a positive sigma; got {self.sigma}.")

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        draw = problem.draw(self.title, 1, self.max_start_epoch, 0, randomness)
        end = descend(points, problem, draw.start, self.steps, self.step_size, randomness)
        samples = gaussian_samples(points, problem, end, self.samples, self.sigma, randomness)
        kind = draw_kind(problem, self.siamese, randomness)
        real = real_energies(problem, self.title, samples, self.batch_size, randomness, self.at_once, kind)
        return covariance_loss(points, problem, samples, real, self.sigma**-2, randomness, self.at_once, kind)
