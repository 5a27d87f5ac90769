"""Forward Kullback-Leibler divergence between Gaussians that differ in their means alone: BPC-fKL (Kim et al. 2022).

For pi the full-data posterior, pi_x the coreset's and T their temperature, and up to a term that does not depend on x,

    T grad_x KL(pi || pi_x) = grad_x { E_pi[ E(x, theta) ] - E_sg(pi_x)[ E(x, theta) ] } / n

where sg stops the gradient. Both posteriors are taken to be Gaussian around the ends of two trajectories from the same
place theta_s, an expert's snapshot:

    pi    ~=  N(theta_{s + a}, sigma^2 I),         the expert, a = ``expert_epochs`` epochs later
    pi_x  ~=  N(theta_k, sigma^2 I),               k steps  theta <- theta - eta grad U(theta)  on the coreset

and each expectation is an average over ``samples`` draws. Equal covariances leave that of pi_x unfitted. The
"experts" of rows are draws of pi, not modes, so they are taken as they are (``expert_sigma = 0``); and the other noise
is that of the coordinates, N(theta_k, P^-1) at sigma = 1 with P half way between the precisions of pi and pi_x. Both
moments then agree where those of pi and pi_x do, and where pi_x is too wide (too narrow) the gradient narrows (widens)
it. The descent needs no graph, so memory does not grow with k.

Defaults are those of the authors' code for ten images per class: 30 samples, sigma = 0.01, k = 30, eta = 0.03, one
epoch ahead of a start before the 20th epoch. They also use SGD on the images with learning rate 1000 and momentum 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods.estimator import (
    descend,
    energy_difference,
    gaussian_samples,
)
from pseudocoresets.methods.method import GradientMethod, Loss
from pseudocoresets.methods.problem import Problem


@dataclass(frozen=True)
class ForwardKL(GradientMethod):
    """S = ``samples`` Gaussian samples for each expectation, ``at_once`` of them in memory together."""

    expert_epochs: int = 1
    max_start_epoch: int | None = 19
    chains: int = 1
    steps: int = 30
    step_size: float = 0.03
    samples: int = 30
    sigma: float = 0.01
    expert_sigma: float | None = None
    """The standard deviation around an expert; that around the coreset's mode, ``sigma``, unless given."""
    at_once: int = 10

    name: ClassVar[str] = "fkl"

    def __post_init__(self) -> None:
        self.require_at_least(expert_epochs=0, chains=1, steps=0, samples=1, sigma=0, expert_sigma=0, at_once=1)

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        positive, negative = self.sample_phases(points, problem, randomness)
        return energy_difference(points, problem, positive, negative, randomness, self.at_once)

    def sample_phases(self, points: Points, problem: Problem, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Samples of the two Gaussians, each (chains * samples, parameters), without a graph."""
        draw = problem.draw(self.title, self.chains, self.max_start_epoch, self.expert_epochs, randomness)
        end = descend(points, problem, draw.start, self.steps, self.step_size, randomness)
        sigma = self.sigma if self.expert_sigma is None else self.expert_sigma
        positive = gaussian_samples(points, problem, draw.later, self.samples, sigma, randomness)
        return positive, gaussian_samples(points, problem, end, self.samples, self.sigma, randomness)
