"""Black-box coreset variational inference on a Gaussian model, where posterior and divergence are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from methods_problems import (
    DOUBLE,
    FixedSource,
    GaussianModel,
    gaussian_kl,
    gaussian_points,
    gaussian_real_data,
    gradients,
)

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods import BlackBoxVI, Problem
from pseudocoresets.methods.black_box_vi import LOG_SCALE, MEAN, MeanField, importance_shares

DATA_SIZE = 40


def gaussian_problem(temperature: float = 1.0) -> Problem:
    real = gaussian_real_data(DATA_SIZE)
    start = torch.zeros(1, 2, dtype=DOUBLE)
    return Problem(Energy(GaussianModel(), DATA_SIZE, temperature), FixedSource(start, start), lambda: real)


def test_the_fit_finds_the_coresets_posterior() -> None:
    """The posterior is in the family; Adam's noise with few draws is a few hundredths of a deviation."""
    problem, points = gaussian_problem(), gaussian_points().detached()
    mean, variance = GaussianModel().posterior(points.x, points.weights)
    far = MeanField(mean + 0.3, torch.full((2,), -3.0, dtype=DOUBLE))
    method = BlackBoxVI(fit_steps=400, fit_rate=0.03, fit_samples=16)
    found = method.fitted(far, points, problem.frame(points), Randomness.for_purpose(0))
    assert ((found.mean - mean).abs() < 0.15 * variance.sqrt()).all()
    torch.testing.assert_close(found.log_scale.exp(), variance.sqrt().expand(2), rtol=0.15, atol=0)


def test_importance_weights_correct_a_wrong_proposal() -> None:
    problem, points = gaussian_problem(), gaussian_points().detached()
    mean, variance = GaussianModel().posterior(points.x, points.weights)
    wrong = MeanField(mean + 0.5 * variance.sqrt(), (1.5 * variance.sqrt()).log().expand(2))
    noise = torch.randn(20000, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    phi = wrong.at(noise)
    shares = importance_shares(wrong, phi, noise, points, problem.frame(points), 5000)
    error = (variance * shares.square().sum()).sqrt()
    assert float(shares.sum()) == pytest.approx(1)
    assert ((shares @ phi - mean).abs() < 5 * error).all()
    assert ((phi.mean(0) - mean).abs() > 5 * error).all()


def test_the_gradient_is_that_of_the_closed_form_divergence() -> None:
    """From a wrong proposal: the mean of many estimates is within five standard errors, per coordinate."""
    problem, points = gaussian_problem(), gaussian_points()
    x, _ = gaussian_real_data(DATA_SIZE).rows(torch.arange(DATA_SIZE))
    model = GaussianModel()
    full = model.posterior(x, torch.ones(DATA_SIZE, dtype=DOUBLE))
    divergence = gaussian_kl(*model.posterior(points.x, points.weights), *full) / DATA_SIZE
    expected = gradients(divergence, points)
    mean, variance = (value.detach() for value in model.posterior(points.x, points.weights))
    state = {MEAN: mean + 0.3 * variance.sqrt(), LOG_SCALE: (1.2 * variance.sqrt()).log().expand(2)}
    method = BlackBoxVI(fit_steps=1, fit_rate=1e-9, samples=20000, at_once=20000, batch_size=DATA_SIZE)
    whole = replace(problem, real_data=lambda: _Whole(gaussian_real_data(DATA_SIZE)))
    found = [
        gradients(method.loss(replace(points, state=state), whole, Randomness.for_purpose(seed)).value, points)
        for seed in range(12)
    ]
    for name, value in expected.items():
        estimates = torch.stack([each[name] for each in found])
        error = estimates.std(0) / len(found) ** 0.5
        assert ((estimates.mean(0) - value).abs() < 5 * error + 1e-3 * value.abs()).all(), name


class _Whole:
    """Real data whose every batch is all of them."""

    def __init__(self, data: object) -> None:
        self._data = data

    def batch(self, size: int, randomness: Randomness) -> object:
        return self._data.rows(torch.arange(size))  # type: ignore[attr-defined]


def test_a_tempered_posterior_needs_a_temperature() -> None:
    with pytest.raises(InputError, match="positive temperature"):
        BlackBoxVI(steps=1).loss(gaussian_points(), gaussian_problem(0.0), Randomness.for_purpose(0))
