"""Distances between posteriors against known answers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.support.glm_problems import glm_problem
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.evaluation import distance
from pseudocoresets.evaluation.distances import Distances, log_predictive, maximum_mean_discrepancy, sliced_wasserstein
from pseudocoresets.models import LogisticRegression

DOUBLE = torch.float64


def test_distances_between_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(800, 2, generator=generator, dtype=DOUBLE) for _ in range(2))
    shifted = second + torch.tensor([1.0, 0.0], dtype=DOUBLE)
    assert maximum_mean_discrepancy(first, second) < 0.3 * maximum_mean_discrepancy(first, shifted)
    # A shift by one along one of two axes moves a projection by cos(angle): the root mean square is sqrt(1/2).
    assert sliced_wasserstein(first, shifted) == pytest.approx(math.sqrt(0.5), abs=0.1)
    # MMD^2 of N(0, I) and N(a, I) for this kernel: 2 (2 / 4)^(2/2) (1 - exp(-|a|^2 / (2 * (2 + 2)))) in two dimensions.
    expected = math.sqrt(2 * 0.5 * (1 - math.exp(-1 / 8)))
    assert maximum_mean_discrepancy(first, shifted) == pytest.approx(expected, abs=0.06)


def test_log_predictive_of_a_point_mass_is_the_log_likelihood() -> None:
    model, x = LogisticRegression(2), torch.randn(10, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    theta, y = torch.tensor([[0.5, -0.2]], dtype=DOUBLE), (x[:, 0] > 0).double()
    assert log_predictive(model, theta, x, y) == pytest.approx(float(model.log_likelihood(theta[0], x, y).mean()))


def gaussians() -> tuple[Gaussian, Gaussian]:
    covariance = torch.tensor([[1.0, 0.4], [0.4, 0.5]], dtype=DOUBLE)
    first = Gaussian(torch.tensor([1.0, 0.0], dtype=DOUBLE), covariance)
    return first, Gaussian(torch.tensor([1.5, -0.2], dtype=DOUBLE), 1.5 * covariance)


def test_gaussians_are_compared_in_closed_form_and_draws_by_their_fits() -> None:
    coreset, full = gaussians()
    exact = distance(coreset, full)
    assert exact.kl_full_coreset == pytest.approx(float(kl_divergence(full, coreset)))
    assert exact.kl_coreset_full == pytest.approx(float(kl_divergence(coreset, full)))
    assert not exact.gaussian_fit
    generator = torch.Generator().manual_seed(0)
    sampled = distance(*(each.sample(20_000, generator).float() for each in (coreset, full)))
    assert sampled.gaussian_fit
    assert sampled.kl_full_coreset == pytest.approx(exact.kl_full_coreset, rel=0.1)


@pytest.mark.parametrize("draws", [torch.zeros(3), torch.zeros(2, 3, 4)])
def test_draws_of_another_shape_are_refused(draws: Tensor) -> None:
    with pytest.raises(InputError, match=r"\(draws, size\)"):
        distance(draws, gaussians()[0])


def test_posteriors_of_other_sizes_are_refused() -> None:
    other = Gaussian(torch.zeros(3, dtype=DOUBLE), torch.eye(3, dtype=DOUBLE))
    with pytest.raises(InputError, match="3 and 2 parameters"):
        distance(other, gaussians()[0])


@pytest.mark.parametrize("size", [3, 40])
def test_kl_by_draws_is_that_of_importance_sampling(size: int) -> None:
    """Far apart and near: NUTS draws and bridge sampling against importance sampling from nearest Gaussians."""
    problem = glm_problem("logistic", "separable", 200, 2, seed=0)
    reference = pc.reference_posterior(problem.rows, problem.model, 500, 200)
    coreset = pc.construct(problem.rows, problem.fit, "giga", model=problem.model, size=size)
    samples = pc.sample_posterior(coreset, model=problem.model, samples=500)
    found = distance(samples, reference, data=problem.rows)
    exact, _ = problem.divergence(coreset.points)
    assert found.kl_by_draws == pytest.approx(exact, rel=0.15, abs=0.02)
    assert found.pareto_k is not None
    with pytest.raises(InputError, match="needs samples of a coreset"):
        distance(samples.draws, reference, data=problem.rows)


def test_a_disagreement_of_gaussian_fits_and_draws_is_said() -> None:
    same = Distances(0.2, 0.2, 0, 0, 0, 0, kl_by_draws=0.25, pareto_k=0.3)
    assert same.disagreement() is None
    assert "trust the latter" in str(replace(same, kl_by_draws=2.0).disagreement())
    assert "lacks a tail" in str(replace(same, kl_full_coreset=0.01, kl_by_draws=0.01, pareto_k=1.2).disagreement())
    assert replace(same, kl_by_draws=2.0, gaussian_fit=False).disagreement() is None
    noisy = replace(same, kl_full_coreset=0.26, kl_by_draws=0.06)
    assert noisy.disagreement() is not None
    assert noisy.disagreement(noise=0.25) is None, "fits to as many draws of one posterior are as far apart"
