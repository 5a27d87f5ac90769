"""Distances between posteriors against known answers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.evaluation import distance
from pseudocoresets.evaluation.distances import log_predictive, maximum_mean_discrepancy, sliced_wasserstein
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
