"""Posteriors of coresets under models that are no networks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.core.targets import all_points
from pseudocoresets.inference import gaussian_moments, sample_model_posterior
from pseudocoresets.kernels import HMC, KERNELS, MALA, NUTS, AnyKernel
from pseudocoresets.methods import Giga, row_problem
from pseudocoresets.models import LinearRegression, LogisticRegression

DOUBLE = torch.float64


def coreset() -> Points:
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    chance = torch.rand(200, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    rows = Rows(x, (chance < torch.sigmoid(x.sum(1))).double())
    return Giga().solve(row_problem(LogisticRegression(2), rows), 10)


@pytest.mark.parametrize("sampler", ["nuts", NUTS(metric="dense"), MALA(0.5), HMC(0.3, 4)], ids=str)
def test_adjusted_kernels_and_importance_sampling_agree_on_a_coreset(sampler: str | AnyKernel) -> None:
    """Two Gaussian fits of 2 parameters differ by about (2 + 3) / ess nats; five times that is allowed."""
    points, model = coreset(), LogisticRegression(2)
    fit, how = gaussian_moments(points, model)
    samples = sample_model_posterior(points, model, sampler, samples=400, warmup=200)
    assert how == "importance sampling"
    assert samples.parameters.shape == (4, 400, 2)
    assert float(kl_divergence(fit, samples.gaussian)) < 5 * 5 / samples.ess
    assert samples.r_hat < 1.1


@pytest.mark.parametrize("sampler", sorted(KERNELS))
def test_every_kernel_samples_the_posterior_by_its_name(sampler: str) -> None:
    """Unadjusted kernels are biased by their step size: a fifth of a nat is far below a wrong target."""
    points, model = coreset(), LogisticRegression(2)
    samples = sample_model_posterior(points, model, sampler, samples=300, warmup=200, thin=5)
    assert float(kl_divergence(gaussian_moments(points, model)[0], samples.gaussian)) < 0.2
    assert samples.settings.sampler == sampler


def test_rows_of_single_precision_and_whole_labels_are_sampled_alike(tmp_path: Path) -> None:
    """Numbers that single precision holds exactly, so that draws must be the same."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    given = pc.Coreset(x, y, torch.ones(60), 60, "rows", "all")
    given.save(tmp_path / "c.safetensors")
    double = pc.Coreset(x.double(), y.double(), torch.ones(60).double(), 60, "rows", "all")
    draws = [
        pc.sample_posterior(each, model=LogisticRegression(2), chains=2, samples=20, warmup=20).parameters
        for each in (given, pc.Coreset.load(tmp_path / "c.safetensors"), double)
    ]
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[2])


def test_a_gaussian_posterior_is_described_exactly() -> None:
    model = LinearRegression(2)
    samples = sample_model_posterior(coreset(), model, samples=50, warmup=50)
    exact, how = gaussian_moments(coreset(), model)
    assert how == "exact"
    assert samples.exact
    torch.testing.assert_close(samples.gaussian.mean, exact.mean)


@dataclass(frozen=True)
class Likelihood:
    """A model that is nothing but its two functions."""

    size: int = 2

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return LogisticRegression(2).log_likelihood(theta, x, y)

    def log_prior(self, theta: Tensor) -> Tensor:
        return LogisticRegression(2).log_prior(theta)


@pytest.mark.parametrize("largest_whitened", [1, 2])
def test_a_model_without_curvature_is_sampled_in_its_own_or_in_whitened_coordinates(
    monkeypatch: pytest.MonkeyPatch, largest_whitened: int
) -> None:
    monkeypatch.setattr("pseudocoresets.inference.models.LARGEST_WHITENED", largest_whitened)
    samples = sample_model_posterior(coreset(), Likelihood(), samples=400, warmup=300)
    fit, _ = gaussian_moments(coreset(), LogisticRegression(2))
    assert float(kl_divergence(fit, samples.gaussian)) < 5 * 5 / samples.ess


def test_corrected_samples_have_the_moments_of_the_full_posterior() -> None:
    """A uniform part of the data is far off; its draws with weights from all the data are not."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    y = torch.rand(200, generator=generator) < torch.sigmoid(x[:, 0])
    rows, model = pc.Rows(x, y), LogisticRegression(2)
    half = pc.construct(rows, model=model, method="uniform", size=150)
    samples = pc.sample_posterior(half, model=model, samples=1000)
    weighted = samples.corrected(rows)
    exact, _ = gaussian_moments(all_points(rows), model)
    assert weighted.trusted
    error = exact.standard_deviation / math.sqrt(weighted.ess)
    assert bool(((weighted.expectation(lambda theta: theta) - exact.mean).abs() < 5 * error).all())
    assert bool(((samples.draws.mean(0) - exact.mean).abs() > 10 * error).any())
    torch.testing.assert_close(weighted.gaussian.mean, weighted.expectation(lambda theta: theta))
    with pytest.raises(InputError, match="Only samples of a coreset of rows"):
        replace(samples, coreset=None).corrected(rows)


def test_a_coreset_that_misses_a_direction_cannot_be_corrected() -> None:
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, model = pc.Rows(x, (x[:, 0] > 0).double()), LogisticRegression(3, prior_scale=5.0)
    one = pc.construct(rows, model=model, method="uniform", size=1)
    assert pc.sample_posterior(one, model=model, samples=200).corrected(rows).k > 0.7
