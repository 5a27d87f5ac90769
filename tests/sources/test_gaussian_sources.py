"""Sources of posterior samples that are no experts: the nearest Gaussian, exact draws and reference runs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Rows
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import PosteriorSource
from pseudocoresets.models import LinearRegression, LogisticRegression
from pseudocoresets.sources.gaussian_fit import GaussianFit
from pseudocoresets.sources.reference import ReferenceRun

LARGEST_Z = 4.5


def rows() -> Rows:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    return Rows(x, (x.sum(1) + torch.randn(60, generator=generator) > 0).float())


def recorded() -> ReferenceRun:
    """A run of 20,000 exact draws of the posterior in two chains, as a reference would hold them."""
    exact = GaussianFit(LinearRegression(2), rows()).gaussian
    draws = exact.sample(20_000, torch.Generator().manual_seed(1)).unflatten(0, (2, 10_000))
    return ReferenceRun(draws, exact, True, 1.0, 20_000.0, 1.0, 1e-4)


SOURCES = {
    "gaussian fit": lambda: GaussianFit(LogisticRegression(2), rows()),
    "exact": lambda: GaussianFit(LinearRegression(2), rows()),
    "reference": recorded,
}


def largest_z(draws: Tensor, gaussian: Gaussian) -> float:
    """Of means and products of the whitened draws, which are N(0, I)."""
    phi = torch.linalg.solve_triangular(gaussian.factor, (draws - gaussian.mean).T, upper=False).T
    values = torch.cat([phi, (phi[:, :, None] * phi[:, None, :]).flatten(1)], 1)
    expected = torch.cat([torch.zeros(2), torch.eye(2).flatten()])
    return float(((values.mean(0) - expected) / values.std(0) * math.sqrt(len(draws))).abs().max())


@pytest.mark.parametrize("name", SOURCES)
def test_draws_have_the_moments_of_the_posterior(name: str) -> None:
    source: PosteriorSource = SOURCES[name]()
    draw = source.draw(4000, None, 1, Randomness.for_purpose(2))
    gaussian = source.gaussian  # type: ignore[attr-defined]
    assert largest_z(draw.start, gaussian) < LARGEST_Z
    assert largest_z(draw.later, gaussian) < LARGEST_Z
    # Two independent draws differ by a Gaussian of twice the covariance.
    assert largest_z((draw.start - draw.later) / math.sqrt(2) + gaussian.mean, gaussian) < LARGEST_Z


@pytest.mark.parametrize("name", SOURCES)
def test_without_epochs_a_draw_is_where_it_starts(name: str) -> None:
    draw = SOURCES[name]().draw(3, 0, 0, Randomness.for_purpose(2))
    assert draw.start is draw.later


def test_a_fit_refuses_labels_that_the_model_cannot_have_produced() -> None:
    signed = Rows(torch.eye(2), torch.tensor([-1.0, 1.0]))
    with pytest.raises(InputError, match="Labels of -1"):
        GaussianFit(LogisticRegression(2), signed).gaussian  # noqa: B018
