"""Forward Kullback-Leibler divergence with the coreset's expectation by a Kronecker-factored Laplace approximation.

    T grad_x KL(pi || pi_x) = grad_x { E_pi[ E(x, theta) ] - E_sg(pi_x)[ E(x, theta) ] } / n

The full-data posterior pi is N(theta_{s + a}, sigma^2 I) around an expert, as in the Gaussian method. The coreset's
posterior pi_x is Gaussian around a mode, with the curvature of the coreset's own energy there:

    theta_k:  k steps  theta <- theta - eta grad U(theta)  from theta_s        (the mode)
    pi_x  ~=  N(theta_k, P^-1),   P = (W A (x) G + I / s^2) / tau + I / laplace_sigma^2   layer by layer

(see ``kronecker`` for the factors). ``laplace_sigma`` bounds the deviation where the coreset says nothing, as the extra
precision of Ritter et al. (2018) does. Beside the descent, an iteration costs one backward pass per class and two
eigendecompositions per layer, of the size of its inputs and of its outputs.

Without published settings for this method (the contrastive-divergence paper reports its cost and accuracy only), the
defaults are those of the Gaussian method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods.estimator import descend, gaussian_samples
from pseudocoresets.methods.forward_kl import ForwardKL
from pseudocoresets.methods.kronecker import Posterior, curvature
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.classifier import Classifier


@dataclass(frozen=True)
class ForwardKLByLaplace(ForwardKL):
    """The Gaussian method with Laplace samples for the coreset's expectation."""

    laplace_sigma: float | None = 0.01

    name: ClassVar[str] = "fkl-kfl"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.laplace_sigma is not None and not self.laplace_sigma > 0:
            raise InputError(f"The bound on the Laplace deviation must be positive or none; got {self.laplace_sigma}.")

    def sample_phases(self, points: Points, problem: Problem, randomness: Randomness) -> tuple[Tensor, Tensor]:
        draw = problem.draw(self.title, self.chains, self.max_start_epoch, self.expert_epochs, randomness)
        modes = descend(points, problem, draw.start, self.steps, self.step_size, randomness)
        seen = replace(points, x=problem.transformation(len(points.x), randomness)(points.x))
        negative = self.sample_coreset(seen, problem, modes, randomness)
        return gaussian_samples(points, problem, draw.later, self.samples, self.sigma, randomness), negative

    def sample_coreset(self, points: Points, problem: Problem, modes: Tensor, randomness: Randomness) -> Tensor:
        """Samples (chains * samples, parameters) of the Laplace approximations at ``modes`` (chains, parameters)."""
        energy, fixed = problem.energy, points.detached()
        model = energy.model
        if not isinstance(model, Classifier):
            raise InputError("The Kronecker-factored Laplace approximation is for networks with a softmax likelihood.")
        if not energy.temperature > 0:
            raise InputError("The Laplace approximation needs a positive temperature.")
        samples = []
        for mode in modes:
            found = curvature(model.network, mode, fixed.x, fixed.weights)
            posterior = Posterior(model.network, mode, found, energy.temperature, model.prior_scale, self.laplace_sigma)
            samples.append(posterior.sample(self.samples, randomness.device))
        return torch.cat(samples)
