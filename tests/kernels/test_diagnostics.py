"""R-hat and effective sample size against another library and against processes with known answers."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudocoresets.core.errors import InputError
from pseudocoresets.kernels.diagnostics import (
    bulk_ess,
    diagnose,
    function_space_diagnostics,
    mean_ess,
    rank_r_hat,
    split_r_hat,
)


def autoregressive(chains: int, draws: int, quantities: int, coefficient: float, seed: int = 0) -> np.ndarray:
    """x_t = c x_{t-1} + sqrt(1 - c^2) N(0, 1), stationary with variance 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(chains, draws, quantities))
    for t in range(1, draws):
        x[:, t] = coefficient * x[:, t - 1] + math.sqrt(1 - coefficient**2) * x[:, t]
    return x


@pytest.fixture(scope="module")
def arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("arviz")


@pytest.mark.parametrize(("chains", "draws"), [(2, 4), (3, 7), (4, 100), (3, 101), (4, 500)])
@pytest.mark.parametrize("coefficient", [0.0, 0.9, -0.5])
@pytest.mark.parametrize("offset", [0.0, 0.4])
def test_agrees_with_arviz(arviz: Any, chains: int, draws: int, coefficient: float, offset: float) -> None:
    x = autoregressive(chains, draws, 6, coefficient)
    x += offset * np.arange(chains)[:, None, None]
    data = arviz.convert_to_dataset(x)
    for ours, theirs in (
        (split_r_hat, arviz.rhat(data, method="split")),
        (rank_r_hat, arviz.rhat(data, method="rank")),
        (bulk_ess, arviz.ess(data, method="bulk")),
        (mean_ess, arviz.ess(data, method="mean")),
    ):
        np.testing.assert_allclose(ours(x), theirs.x.values, rtol=1e-9)


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_autoregression(coefficient: float) -> None:
    """tau = (1 + c) / (1 - c).

    Cutting the sum of autocorrelations at their first negative pair leaves a bias that falls with the number of
    draws: about 1.5 % at 1,000 for c = 0. The rest is the error of a median over 200 quantities.
    """
    chains, draws = 4, 1000
    expected = chains * draws * (1 - coefficient) / (1 + coefficient)
    ess = mean_ess(autoregressive(chains, draws, 200, coefficient))
    error_of_median = math.sqrt(math.pi / 2) * ess.std() / math.sqrt(200) / expected
    assert abs(np.median(ess) / expected - 1) < 0.015 + 4.5 * error_of_median


def test_r_hat_of_shifted_chains() -> None:
    """Two chains d apart with variance 1 have B / N = d^2 / 3 over four halves, so R-hat -> sqrt(1 + d^2 / 3)."""
    x = np.random.default_rng(0).normal(size=(2, 200_000, 1))
    x[1] += 2.0
    assert split_r_hat(x)[0] == pytest.approx(math.sqrt(1 + 4 / 3), rel=0.01)


def test_rank_r_hat_sees_unequal_spread_and_plain_r_hat_does_not() -> None:
    x = np.random.default_rng(0).normal(size=(4, 500, 20))
    x[0] *= 5
    assert np.median(split_r_hat(x)) < 1.02
    assert rank_r_hat(x).min() > 1.1


@given(st.integers(1, 4), st.integers(4, 40), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_rank_normalised_values_ignore_monotone_maps(chains: int, draws: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(chains, draws, 3))
    np.testing.assert_allclose(bulk_ess(x), bulk_ess(np.exp(3 * x)))
    np.testing.assert_allclose(rank_r_hat(x), rank_r_hat(-2 * x))
    np.testing.assert_allclose(split_r_hat(x), split_r_hat(torch.as_tensor(-2 * x)))


def probabilities(shift: float, draws: int = 50, chains: int = 4) -> torch.Tensor:
    """Predictions (chains, draws, 30, 5) around logits that differ between chains by ``shift``."""
    generator = torch.Generator().manual_seed(0)
    centre = shift * torch.randn(chains, 1, 30, 5, generator=generator)
    return (centre + torch.randn(chains, draws, 30, 5, generator=generator)).softmax(-1)


def test_agreeing_chains_give_no_warning() -> None:
    found = function_space_diagnostics(probabilities(0.0))
    assert found.warning is None
    assert found.quantities == 150
    assert 0.99 < found.r_hat_median < 1.05
    assert found.ess_median == pytest.approx(200, rel=0.25)
    assert found.ess_min <= found.ess_median and found.r_hat_median <= found.r_hat_max


def test_disagreeing_chains_give_a_plain_warning() -> None:
    found = function_space_diagnostics(probabilities(1.0))
    assert found.warning is not None and found.warning.startswith("The chains disagree")
    assert f"{found.share_above:.0%}" in found.warning
    assert found.r_hat_max > 1.2


def test_one_drifting_chain_gives_a_warning() -> None:
    drift = torch.linspace(-2, 2, 40)[None, :, None, None] * torch.tensor([1.0, -1.0])
    found = function_space_diagnostics(drift.expand(1, 40, 8, 2).softmax(-1))
    assert found.warning is not None and found.warning.startswith("The chain still drifts")


@pytest.mark.parametrize("draws", [1, 3])
def test_too_few_draws_say_so(draws: int) -> None:
    found = function_space_diagnostics(probabilities(0.0, draws))
    assert math.isnan(found.r_hat_max) and found.quantities == 0
    assert found.warning is not None and "nothing can be said" in found.warning
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["r_hat_max"] is None


def test_points_are_subsampled_and_constant_ones_left_out() -> None:
    values = probabilities(0.0)
    assert function_space_diagnostics(values, points=10).quantities == 50
    values[:, :, 0] = 0.2
    assert function_space_diagnostics(values).quantities == 145
    constant = function_space_diagnostics(torch.full((2, 10, 3, 2), 0.5))
    assert constant.quantities == 0 and constant.warning is None


def test_stuck_chains_have_infinite_r_hat() -> None:
    x = np.repeat(np.arange(3.0)[:, None, None], 10, axis=1)
    found = diagnose(x)
    assert found.r_hat_max == math.inf
    assert found.warning is not None


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="chains, draws, points, classes"):
        function_space_diagnostics(torch.zeros(2, 10, 3))
    with pytest.raises(InputError, match="at least 4 draws"):
        bulk_ess(torch.zeros(2, 3, 1))
    with pytest.raises(InputError, match="chains, draws, quantities"):
        diagnose(torch.zeros(2, 3))
