"""Forward Kullback-Leibler divergence with the coreset's expectation by Hamiltonian Monte Carlo.

    T grad_x KL(pi || pi_x) = grad_x { E_pi[ E(x, theta) ] - E_sg(pi_x)[ E(x, theta) ] } / n

The full-data posterior pi is N(theta_{s + a}, sigma^2 I) around an expert, as in the Gaussian method. The
coreset's posterior pi_x is sampled: ``steps`` descent steps from theta_s find a mode, then HMC runs ``burn_in``
trajectories that are dropped and ``samples`` that are kept, each with ``leapfrog_steps`` and accept or reject, at the
posterior's own temperature T. One augmentation is drawn for the whole of HMC, because accepting needs one potential,
and the two energies are compared under the same one.

This is the direct route to the second expectation with which the contrastive-divergence paper compares its cost; it
costs (burn_in + samples) * leapfrog_steps gradients on the coreset per iteration. The mean acceptance probability is
recorded, and tells whether ``step_size`` suits the problem (0.6 to 0.9 is usual).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.kernels import HMC, run_chain
from pseudocoresets.methods.estimator import (
    descend,
    energy_difference,
    gaussian_samples,
)
from pseudocoresets.methods.method import GradientMethod, Loss
from pseudocoresets.methods.problem import Problem


@dataclass(frozen=True)
class ForwardKLByHMC(GradientMethod):
    """``step_size`` is that of the leapfrog, ``descent_step_size`` that of the descent before it."""

    expert_epochs: int = 2
    max_start_epoch: int | None = 10
    chains: int = 1
    steps: int = 50
    descent_step_size: float = 0.03
    burn_in: int = 5
    samples: int = 10
    leapfrog_steps: int = 10
    step_size: float = 0.02
    sigma: float = 0.001
    at_once: int = 10

    name: ClassVar[str] = "fkl-hmc"

    def __post_init__(self) -> None:
        self.require_at_least(expert_epochs=0, chains=1, steps=0, burn_in=0, samples=1, sigma=0, at_once=1)
        HMC(self.step_size, self.leapfrog_steps)

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        draw = problem.draw(self.title, self.chains, self.max_start_epoch, self.expert_epochs, randomness)
        mode = descend(points, problem, draw.start, self.steps, self.descent_step_size, randomness)
        seen = replace(points, x=problem.transformation(len(points.x), randomness)(points.x))
        plain = problem.without_augmentation()
        negative, acceptance = self.sample_coreset(seen, plain, mode, randomness)
        positive = gaussian_samples(points, problem, draw.later, self.samples, self.sigma, randomness)
        loss = energy_difference(seen, plain, positive, negative, randomness, self.at_once)
        return loss._replace(terms={**loss.terms, "acceptance": acceptance})

    def sample_coreset(
        self, points: Points, problem: Problem, start: Tensor, randomness: Randomness
    ) -> tuple[Tensor, Tensor]:
        """Samples (chains * samples, parameters) of the points' posterior, and the mean acceptance probability."""
        frame = problem.frame(points)
        target = problem.backend.target(frame.energy, points.detached())
        kept = range(self.burn_in + 1, self.burn_in + self.samples + 1)
        kernel = HMC(self.step_size, self.leapfrog_steps)
        chain = run_chain(kernel, frame.enter(start), target, kept[-1], randomness.device, kept)
        assert chain.acceptance is not None
        return frame.leave(chain.kept.flatten(0, 1)), chain.acceptance.mean()
