"""Pareto-smoothed importance sampling against arviz and tails of known shape."""

from __future__ import annotations

import math

import arviz
import numpy as np
import pytest
import torch

from pseudocoresets.kernels.pareto import effective_draws, fit_pareto, pareto_smoothed


@pytest.mark.parametrize("shape", [0.1, 0.5, 0.9])
def test_smoothed_weights_are_those_of_arviz(shape: float) -> None:
    ratios = np.log1p(np.random.default_rng(1).pareto(1 / shape, 1000))
    ours = pareto_smoothed(torch.from_numpy(ratios))
    theirs, k = arviz.psislw(ratios.copy())
    assert ours.k == pytest.approx(float(k), abs=1e-10)
    np.testing.assert_allclose(ours.log_weights.numpy(), np.asarray(theirs), atol=1e-10)
    assert float(ours.log_weights.exp().sum()) == pytest.approx(1)


@pytest.mark.parametrize("shape", [0.3, 0.7, 1.2])
def test_finds_the_shape_and_the_scale_of_a_pareto_tail(shape: float) -> None:
    """The maximum-likelihood error of the shape is (1 + k) / sqrt(N), the prior's weight 10 / N."""
    count = 20_000
    uniform = np.random.default_rng(0).random(count)
    found, scale = fit_pareto(2.0 * (uniform**-shape - 1) / shape)
    assert found == pytest.approx(shape, abs=4 * (1 + shape) / math.sqrt(count) + 10 / count)
    assert scale == pytest.approx(2.0, rel=0.1)


def test_equal_ratios_are_equal_weights_and_infinite_ones_are_not_to_be_trusted() -> None:
    equal = pareto_smoothed(torch.zeros(500))
    assert equal.k == -math.inf
    assert effective_draws(equal) == pytest.approx(500)
    assert pareto_smoothed(torch.tensor([0.0] * 99 + [math.nan])).k == math.inf


def test_weights_correct_an_average() -> None:
    """E[x^2] under N(0, 1) from draws of N(0, 1.5^2), whose ratios are bounded."""
    draws = 1.5 * torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = pareto_smoothed(-0.5 * draws**2 + 0.5 * (draws / 1.5) ** 2)
    assert weights.k < 0.5
    assert float(weights.log_weights.exp() @ draws**2) == pytest.approx(1, abs=0.03)
