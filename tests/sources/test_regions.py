"""References of posteriors with several modes: all of them, with what each holds, or none."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.inference.models import sample_model_posterior
from pseudocoresets.models import FunctionModel, LogisticRegression
from pseudocoresets.models.functions import as_smooth
from pseudocoresets.sources.gaussian_fit import GaussianFit
from pseudocoresets.sources.reference import ReferenceRun, reference_posterior, require_agreement
from pseudocoresets.sources.regions import find_regions, log_evidence

SHORT = {"draws": 150, "warmup": 100, "chains": 12}
"""Chains advance together, so that more of them cost little, and R-hat is sooner below 1.01."""


def mixture(tilt: float, components: int = 2) -> tuple[FunctionModel, Rows]:
    """Equal shares of N(mu_j, 1) with the means as parameters: exchanging them changes the prior's tilt alone."""

    def log_likelihood(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.logsumexp(-0.5 * (x - theta).square(), 1) - math.log(components)

    def log_prior(theta: Tensor) -> Tensor:
        return -0.02 * theta.square().sum() + tilt * theta[0]

    generator = torch.Generator().manual_seed(0)
    centres = 4.0 * (torch.arange(60)[:, None] * components // 60) - 2 * (components - 1)
    x = torch.randn(60, 1, generator=generator) + centres
    return FunctionModel(log_likelihood, log_prior, components), Rows(x, torch.zeros(60))


def share_of_first_mode(model: FunctionModel, rows: Rows) -> float:
    """The mass of mu_1 < mu_2, on a grid."""
    axis = torch.linspace(-5, 5, 400, dtype=torch.float64)
    theta = torch.cartesian_prod(axis, axis)
    joint = model.log_likelihood(theta, rows.x, rows.y).sum(1) + model.log_prior(theta)
    return float(joint.softmax(0)[theta[:, 0] < theta[:, 1]].sum())


@lru_cache
def reference_of_mixture(tilt: float, seed: int = 0) -> ReferenceRun:
    model, rows = mixture(tilt)
    return reference_posterior(rows, model, **SHORT, seed=seed)


@pytest.mark.parametrize("tilt", [0.0, 0.2])
def test_both_modes_of_a_mixture_are_there_with_what_they_hold(tilt: float) -> None:
    model, rows = mixture(tilt)
    found = reference_of_mixture(tilt)
    assert found.modes == 2
    share = float((found.draws[:, 0] < found.draws[:, 1]).double().mean())
    exact = share_of_first_mode(model, rows)
    binomial = math.sqrt(exact * (1 - exact) / len(found.draws))
    assert share == pytest.approx(exact, abs=4 * binomial + 0.05 * exact * (1 - exact))
    require_agreement(found, reference_of_mixture(tilt, seed=1))


def test_samples_of_a_coreset_have_both_modes_too() -> None:
    """A coreset of real points is a small mixture; its chains would stay where they start."""
    model, rows = mixture(0.2)
    points = Points(rows.x[::5], rows.y[::5], torch.full((12,), 5.0, dtype=torch.float64))
    found = sample_model_posterior(points, model, samples=150, warmup=100)
    axis = torch.linspace(-5, 5, 400, dtype=torch.float64)
    theta = torch.cartesian_prod(axis, axis)
    joint = model.log_likelihood(theta, points.x, points.y) @ points.weights + model.log_prior(theta)
    exact = float(joint.softmax(0)[theta[:, 0] < theta[:, 1]].sum())
    share = float((found.draws[:, 0] < found.draws[:, 1]).double().mean())
    assert found.parameters.shape == (4, 150, 2)
    assert share == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 600) + 0.05 * exact * (1 - exact))


def test_a_reference_of_one_mode_is_refused_by_one_of_both() -> None:
    found = reference_of_mixture(0.0)
    swapped = found.parameters.sort(-1).values
    half = replace(found, parameters=swapped, gaussian=Gaussian.fit(swapped.flatten(0, 1)))
    with pytest.raises(DivergenceError, match="started independently disagree"):
        require_agreement(half, found)


@pytest.mark.parametrize(("components", "modes"), [(2, 2), (3, 6)])
def test_every_naming_of_the_components_is_a_mode_in_every_seed(components: int, modes: int) -> None:
    model, rows = mixture(0.0, components)
    known = GaussianFit(as_smooth(model), rows).gaussian
    assert [len(find_regions(as_smooth(model), rows, known, seed)) for seed in range(4)] == 4 * [modes]


def test_a_posterior_with_one_mode_has_one_region() -> None:
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, model = Rows(x, (x[:, 0] > 0).double()), LogisticRegression(2)
    known = GaussianFit(model, rows).gaussian
    assert find_regions(model, rows, known, seed=0) == [known]
    assert reference_posterior(rows, model, **SHORT).modes == 1


def test_bridge_sampling_finds_a_known_evidence() -> None:
    """Of exp(-|x|^4 / 4) in two dimensions: the integral over the plane is pi Gamma(1/2) in polar coordinates.

    u = |x|^4 / 4 has the density of half a squared normal number.
    """
    generator = torch.Generator().manual_seed(0)
    radius = (2 * torch.randn(4000, generator=generator, dtype=torch.float64).square()) ** 0.25
    angle = 2 * math.pi * torch.rand(4000, generator=generator, dtype=torch.float64)
    draws = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    found = log_evidence(draws, lambda theta: -0.25 * theta.square().sum(1).square())
    assert found == pytest.approx(math.log(math.pi * math.gamma(0.5)), abs=0.03)
