"""Gaussian process regression, Titsias' bound, and pseudo-coresets of the same process."""

from __future__ import annotations

import pytest
import torch

import pseudocoresets as pc
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.models import GaussianProcess, SmoothModel
from pseudocoresets.sources.gaussian_fit import fit_gaussian

MODEL = GaussianProcess(lengthscale=0.8, scale=1.5, noise_scale=0.3, bound=6.0, functions=40)
STREAM = torch.Generator().manual_seed(0)
X = 5 * torch.rand(60, 1, generator=STREAM, dtype=torch.float64) - 2.5
Y = torch.sin(2 * X[:, 0]) + 0.3 * torch.randn(60, generator=STREAM, dtype=torch.float64)


def kernel(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return 1.5**2 * torch.exp(-0.5 * ((first - second.T) / 0.8).square())


def test_features_make_the_kernel_and_its_evidence() -> None:
    """At 3.5 = 4.4 lengthscales from the bound, the images beyond it add exp(-7^2 / (2 0.8^2)) < 1e-16."""
    features = MODEL.features(X)
    torch.testing.assert_close(features @ features.T, kernel(X, X), rtol=0, atol=1e-9)
    exact = torch.distributions.MultivariateNormal(
        torch.zeros(60, dtype=torch.float64), kernel(X, X) + 0.09 * torch.eye(60)
    )
    torch.testing.assert_close(MODEL.log_evidence(X, Y), exact.log_prob(Y))


def test_the_posterior_mean_is_that_of_gaussian_process_regression() -> None:
    assert isinstance(MODEL, SmoothModel)
    places = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    mean = MODEL.features(places) @ fit_gaussian(MODEL, pc.Rows(X, Y)).mean
    exact = kernel(places, X) @ torch.linalg.solve(kernel(X, X) + 0.09 * torch.eye(60), Y)
    torch.testing.assert_close(mean, exact, rtol=0, atol=1e-6)


def test_titsias_bound_misses_the_evidence_by_the_divergence_of_its_posterior() -> None:
    places = torch.linspace(-2.2, 2.2, 5, dtype=torch.float64)[:, None]
    found, full = MODEL.inducing(X, Y, places), fit_gaussian(MODEL, pc.Rows(X, Y))
    gap = MODEL.log_evidence(X, Y) - found.bound
    assert float(gap) > 1
    torch.testing.assert_close(gap, kl_divergence(found.posterior, full), rtol=1e-6, atol=1e-6)


def test_a_pseudo_coreset_carries_the_process() -> None:
    full = fit_gaussian(MODEL, pc.Rows(X, Y))
    few, many = (
        float(
            kl_divergence(
                full, fit_gaussian(MODEL, pc.construct((X, Y), method="moments", model=MODEL, size=size).points)
            )
        )
        for size in (3, 10)
    )
    assert many < 0.05 < few


def test_points_beyond_the_bound_are_refused() -> None:
    with pytest.raises(pc.InputError, match="within 6 of zero"):
        pc.construct((4 * X, Y), model=MODEL, size=3)
