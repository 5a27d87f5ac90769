"""Black-box coreset variational inference (Manousakas, Ritter & Karaletsos 2022).

Points and weights u minimise KL(pi_u || pi) without samples of pi_u: a mean-field Gaussian r = N(m, diag(s^2)), fitted
to pi_u by ``fit_steps`` of reparameterised gradient ascent on

    E_r[ -U_u(theta) / T ] + sum_i log s_i

and kept from one iteration to the next, proposes theta_s ~ r, and self-normalised importance weights
omega_s ~ exp(-U_u(theta_s) / T) / r(theta_s) turn averages over r into averages over pi_u. With e = E_u / n and r_s the
full data's energy per datum, estimated on a batch, the importance-weighted objective

    T KL(pi_u || pi) ~= sum_s omega_s (r_s - e_s) - T log mean_s exp(-U_u(theta_s) / T) / r(theta_s) + constant

has the gradient (1 / T) Cov_omega[grad_u e, e - r], that of (1 / (2 T)) Var_omega[e - r]: this is the loss.
Where a problem has whitened coordinates, r is a mean-field Gaussian in those. Unlike in the paper, the fit's own
dependence on u is left out of the gradient, which the importance weights make right in the limit of many samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocoresets.core.energy import potential_and_gradient
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods.estimator import covariance_loss, descend, draw_kind, real_energies
from pseudocoresets.methods.method import GradientMethod, Loss, StateShape
from pseudocoresets.methods.problem import Frame, Problem

MEAN, LOG_SCALE = "mean", "log_scale"


class MeanField(NamedTuple):
    """N(mean, diag(exp(2 log_scale))), each (size,)."""

    mean: Tensor
    log_scale: Tensor

    def at(self, noise: Tensor) -> Tensor:
        """mean + s noise for standard normal noise (count, size)."""
        return self.mean + self.log_scale.exp() * noise


@dataclass(frozen=True)
class BlackBoxVI(GradientMethod):
    """``samples`` draws of r, and ``batch_size`` real points for the full data's energy.

    r begins at the mode that ``steps`` descent steps find from a snapshot of at most ``max_start_epoch`` epochs, with
    the deviation ``first_scale`` (one in whitened coordinates). A fitting step moves mean and deviation by about
    ``fit_rate`` deviations, estimated by ``fit_samples`` draws.
    """

    max_start_epoch: int | None = 0
    steps: int = 100
    step_size: float = 0.03
    first_scale: float = 0.01
    fit_steps: int = 20
    fit_rate: float = 0.05
    fit_samples: int = 4
    samples: int = 100
    batch_size: int = 200
    siamese: bool = False
    at_once: int = 10

    name: ClassVar[str] = "black-box-vi"
    learns_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.require_at_least(steps=0, fit_steps=1, fit_samples=1, samples=2, batch_size=1, at_once=1)

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        if not problem.energy.temperature > 0:
            raise InputError("Black-box VI needs a positive temperature: its samples must differ.")
        fixed = points.detached()
        frame = problem.frame(fixed)
        proposal = self.fitted(self._before(fixed, problem, frame, randomness), fixed, frame, randomness)
        noise = _noise(self.samples, proposal, randomness)
        phi = proposal.at(noise)
        shares = importance_shares(proposal, phi, noise, fixed, frame, self.at_once)
        samples, kind = frame.leave(phi), draw_kind(problem, self.siamese, randomness)
        real = real_energies(problem, self.title, samples, self.batch_size, randomness, self.at_once, kind)
        scale = problem.energy.data_size / problem.energy.temperature
        loss = covariance_loss(points, problem, samples, real, scale, randomness, self.at_once, kind, shares)
        terms = {**loss.terms, "effective_samples": 1 / shares.square().sum()}
        return loss._replace(terms=terms, state={MEAN: proposal.mean, LOG_SCALE: proposal.log_scale})

    def state_shapes(self, problem: Problem) -> Mapping[str, StateShape]:
        size = problem.energy.model.size
        return {MEAN: (size,), LOG_SCALE: (size,)}

    def _before(self, points: Points, problem: Problem, frame: Frame, randomness: Randomness) -> MeanField:
        """Where r was in the last iteration, or where it begins."""
        if MEAN in points.state:
            return MeanField(points.state[MEAN], points.state[LOG_SCALE])
        start = problem.draw(self.title, 1, self.max_start_epoch, 0, randomness).start
        mode = frame.enter(descend(points, problem, start, self.steps, self.step_size, randomness))[0]
        scale = 1.0 if frame.coordinates is not None else self.first_scale
        return MeanField(mode, torch.full_like(mode, math.log(scale)))

    def fitted(self, start: MeanField, points: Points, frame: Frame, randomness: Randomness) -> MeanField:
        """r after ``fit_steps`` of Adam on its evidence lower bound, in units of its deviations at the start."""
        target = frame.energy.target(points.x, points.y, points.weights)
        shift, growth = torch.zeros_like(start.mean), torch.zeros_like(start.mean)
        unit = start.log_scale.exp()
        optimiser = torch.optim.Adam([shift, growth], lr=self.fit_rate)
        here = start
        for _ in range(self.fit_steps):
            noise = _noise(self.fit_samples, here, randomness)
            gradients = potential_and_gradient(target, here.at(noise))[1] / target.temperature
            shift.grad = unit * gradients.mean(0)
            growth.grad = (gradients * noise).mean(0) * here.log_scale.exp() - 1
            optimiser.step()
            here = MeanField(start.mean + unit * shift, start.log_scale + growth)
        return here


def importance_shares(
    proposal: MeanField, phi: Tensor, noise: Tensor, points: Points, frame: Frame, at_once: int
) -> Tensor:
    """omega_s ~ exp(-U_u(phi_s) / T) / r(phi_s), summing to one, for phi_s = mean + s noise_s."""
    target = frame.energy.target(points.x, points.y, points.weights)
    with torch.no_grad():
        potential = torch.cat([target.potential(part) for part in phi.split(at_once)])
    return torch.softmax(-potential / target.temperature + 0.5 * noise.square().sum(-1), 0)


def _noise(count: int, like: MeanField, randomness: Randomness) -> Tensor:
    shape, mean = (count, len(like.mean)), like.mean
    return torch.randn(shape, generator=randomness.device, device=mean.device, dtype=mean.dtype)
