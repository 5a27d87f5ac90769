"""What methods ask of a problem: whitened coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from methods_problems import DOUBLE, FixedSource, gaussian_points, gradients
from torch import Tensor

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.kernels import Langevin
from pseudocoresets.methods import ContrastiveDivergence, Problem, Wasserstein

CHAINS, DATA_SIZE, TEMPERATURE, STANDARD_ERRORS = 4000, 40, 0.5, 5
SCALES = torch.tensor([[30.0, 0.0], [0.2, 0.001]], dtype=DOUBLE)
"""Parameters in units that differ by four orders, and are correlated: theta = SCALES u with u of order one."""


@dataclass(frozen=True)
class Scaled:
    """x_i ~ N(SCALES^-1 theta, I) with the prior N(0, SCALES SCALES^T): a Gaussian that no single step size suits."""

    size: int = 2

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -(x - self.unscaled(theta)[..., None, :]).square().sum(-1) / 2

    def log_prior(self, theta: Tensor) -> Tensor:
        return -self.unscaled(theta).square().sum(-1) / 2

    def unscaled(self, theta: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(SCALES, theta.T, upper=False).T

    def posterior(self, points: Points) -> Gaussian:
        """Of exp(-n U / temperature): u ~ N(sum_i w_i x_i / (sum_i w_i + 1), temperature / (sum_i w_i + 1) I)."""
        precision = points.weights.sum() + 1
        mean = (points.weights[:, None] * points.x).sum(0) / precision
        return Gaussian(SCALES @ mean, TEMPERATURE / precision * SCALES @ SCALES.T)


def whitened_problem() -> Problem:
    model = Scaled()
    return Problem(Energy(model, DATA_SIZE, TEMPERATURE), coordinates=model.posterior)


def test_langevin_in_whitened_coordinates_has_the_posterior_for_its_law() -> None:
    """Stationary variance 1 / (1 - eta / 2) in the coordinates, whatever the units of the parameters are."""
    problem, points, step_size = whitened_problem(), gaussian_points(total=DATA_SIZE).detached(), 0.2
    posterior, randomness = Scaled().posterior(points), Randomness.for_purpose(0)
    start = posterior.mean.expand(CHAINS, 2)
    ends = problem.run_chain(Langevin(step_size), start, points, 40, randomness)
    expected = Gaussian(posterior.mean, posterior.covariance / (1 - step_size / 2))
    whitened = torch.linalg.solve_triangular(expected.factor, (ends - expected.mean).T, upper=False)
    error = STANDARD_ERRORS / CHAINS**0.5
    assert float(whitened.mean(1).abs().max()) < error
    covariance = torch.cov(whitened)
    assert float((covariance.diagonal() - 1).abs().max()) < 2**0.5 * error
    assert abs(float(covariance[0, 1])) < error


def test_descent_in_whitened_coordinates_is_newtons() -> None:
    """Where the coordinates are those of the posterior itself, a noiseless step of size one ends at its mean."""
    problem, points = whitened_problem(), gaussian_points(total=DATA_SIZE).detached()
    start = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    end = problem.run_chain(Langevin(1.0), start, points, 1, Randomness.for_purpose(0), noisy=False)
    torch.testing.assert_close(end, Scaled().posterior(points).mean.expand(3, 2), rtol=1e-9, atol=1e-12)


def test_perturbations_have_the_coordinates_covariance() -> None:
    problem, points = whitened_problem(), gaussian_points(total=DATA_SIZE).detached()
    centre = torch.ones(CHAINS, 2, dtype=DOUBLE)
    moved = problem.perturbed(centre, 0.5, points, Randomness.for_purpose(0)) - centre
    factor = 0.5 * Scaled().posterior(points).factor
    covariance = torch.cov(torch.linalg.solve_triangular(factor, moved.T, upper=False))
    assert float((covariance - torch.eye(2)).abs().max()) < 2**0.5 * STANDARD_ERRORS / CHAINS**0.5
    assert problem.perturbed(centre, 0.0, points, Randomness.for_purpose(0)) is centre


@pytest.mark.parametrize(
    "method",
    [
        ContrastiveDivergence(expert_epochs=1, chains=2, steps=3, step_size=0.2),
        Wasserstein(chains=2, steps=3, step_size=0.2, gradient="stored"),
    ],
)
def test_methods_in_whitened_coordinates_do_not_depend_on_units(method: ContrastiveDivergence | Wasserstein) -> None:
    """The same problem in parameters u = SCALES^-1 theta gives the same loss and the same gradients."""

    @dataclass(frozen=True)
    class Unscaled(Scaled):
        def unscaled(self, theta: Tensor) -> Tensor:
            return theta

        def posterior(self, points: Points) -> Gaussian:
            return Gaussian(
                torch.linalg.solve(SCALES, super().posterior(points).mean),
                TEMPERATURE / (points.weights.sum() + 1) * torch.eye(2, dtype=DOUBLE),
            )

    generator = torch.Generator().manual_seed(1)
    start, later = (torch.randn(2, 2, generator=generator, dtype=DOUBLE) for _ in range(2))
    points = gaussian_points(total=DATA_SIZE)
    points = replace(points, hyperparameters={name: torch.tensor(0.2) for name in method.hyperparameters()})
    found = []
    for model, scales in ((Scaled(), SCALES), (Unscaled(), torch.eye(2, dtype=DOUBLE))):
        source = FixedSource(start @ scales.T, later @ scales.T)
        problem = Problem(Energy(model, DATA_SIZE, TEMPERATURE), source, coordinates=model.posterior)
        loss = method.loss(points, problem, Randomness.for_purpose(0)).value
        found.append((loss.detach(), gradients(loss, points)))
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def test_whitened_coordinates_need_a_temperature() -> None:
    problem = replace(whitened_problem(), energy=Energy(Scaled(), DATA_SIZE, 0.0))
    with pytest.raises(InputError, match="positive temperature"):
        problem.frame(gaussian_points())
