"""Coresets of data that keep arriving and of data in parts, where the posterior of all data is known."""

from __future__ import annotations

import pytest
import torch
from tests.support.glm_problems import glm_problem
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.construction.incremental import RepeatedRows, parts_of
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.core.points import Points
from pseudocoresets.models import LinearRegression, SmoothModel, SoftmaxRegression
from pseudocoresets.sources.gaussian_fit import fit_gaussian

BATCH, UPDATES = 20, 50


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = normal(BATCH * (UPDATES + 1), 3, seed=0)
Y = X @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64) + 0.5 * normal(len(X), seed=1)
MODEL = LinearRegression(3, noise_scale=0.5)


def part(begin: int, end: int) -> pc.Rows:
    return pc.Rows(X[begin:end], Y[begin:end])


def built(rows: pc.Rows, size: int = 5) -> pc.Coreset:
    return pc.construct(rows, model=MODEL, method="moments", size=size, check=False)


def divergence(model: SmoothModel, rows: pc.Rows, coreset: pc.Coreset) -> float:
    return float(kl_divergence(fit_gaussian(model, rows), fit_gaussian(model, coreset.points)))


def test_after_fifty_updates_the_posterior_is_that_of_all_data() -> None:
    """Each reduction leaves a thousandth of a nat at most; their errors do not add up to more than a tenth."""
    coreset = built(part(0, BATCH))
    for step in range(1, UPDATES + 1):
        coreset = pc.update(coreset, part(BATCH * step, BATCH * (step + 1)), MODEL)
        ones = bin(step + 1).count("1")  # 51 batches = 32 + 16 + 2 + 1: a part for each
        assert [len(each) for each in parts_of(coreset)] == [5] * ones
    assert [each.data_size // BATCH for each in parts_of(coreset)] == [32, 16, 2, 1]
    assert coreset.data_size == len(X)
    assert divergence(MODEL, pc.Rows(X, Y), coreset) < 0.1
    assert divergence(MODEL, pc.Rows(X, Y), pc.merge([coreset], MODEL, 5)) < 0.1
    assert divergence(MODEL, pc.Rows(X, Y), built(part(0, BATCH))) > 1


def test_coresets_of_parts_stand_for_the_whole() -> None:
    parts = [built(pc.Rows(X[i::4], Y[i::4])) for i in range(4)]
    union = pc.merge(parts)
    assert (len(union), union.data_size) == (20, len(X))
    assert torch.equal(union.x[5:10], parts[1].x)
    assert divergence(MODEL, pc.Rows(X, Y), union) < 0.01
    reduced = pc.merge([pc.merge(parts[:2], MODEL, 6), pc.merge(parts[2:], MODEL, 6)], MODEL, 6)
    assert (len(reduced), reduced.data_size) == (6, len(X))
    assert divergence(MODEL, pc.Rows(X, Y), reduced) < 0.05
    assert reduced.configuration["merged"] == ["moments", "moments"]


def test_a_reduction_keeps_a_posterior_that_is_no_gaussian() -> None:
    """Weights of coresets need not add up to the number of data, and their reduction may not make them.

    Rows of zeros say nothing about a logistic regression, so these 320 stand for the posterior of 200 data.
    """
    problem = glm_problem("logistic", "plain", 200, 4, seed=0)
    zeros, weights = torch.zeros(1, 4), torch.tensor([1.0] * 100 + [60.0])
    halves = [
        pc.Coreset(torch.cat([x, zeros.to(x)]), torch.cat([y, y[:1]]), weights.to(x), 100, "rows", "all")
        for x, y in ((problem.rows.x[i::2], problem.rows.y[i::2]) for i in range(2))
    ]
    assert problem.divergence(pc.merge(halves).points)[0] < 1e-9
    reduced = pc.merge(halves, problem.model, 8)
    assert (len(reduced), reduced.data_size) == (8, 200)
    assert problem.divergence(reduced.points)[0] < 0.003


def test_soft_labels_take_hard_ones_that_arrive() -> None:
    x = normal(80, 2, seed=2)
    y = (x[:, 0] > 0).double() + (x[:, 1] > 0.5).double()
    model = SoftmaxRegression(2, 3)
    first = pc.construct((x[:40], y[:40]), model=model, method="moments", size=8, check=False)
    assert first.y.shape == (8, 3)
    later = pc.update(first, (x[40:], y[40:]), model)
    assert divergence(model, pc.Rows(x, y), later) < 0.5


def test_weights_become_repetitions() -> None:
    points = Points(torch.arange(3.0)[:, None], torch.zeros(3), torch.tensor([2.0, 0.0, 8.0]))
    rows = RepeatedRows(points, 10)
    ((x, _),) = rows.batches()
    assert len(rows) == 10
    assert x[:, 0].tolist() == [0.0] * 2 + [2.0] * 8
    assert rows.rows(torch.tensor([9, 0]))[0][:, 0].tolist() == [2.0, 0.0]


def test_what_cannot_be_merged_is_said() -> None:
    coreset = built(part(0, 20))
    with pytest.raises(pc.InputError, match="at least one coreset"):
        pc.merge([])
    with pytest.raises(pc.InputError, match="give its model="):
        pc.merge([coreset, coreset], size=3)
    other = pc.Coreset(torch.zeros(2, 1), torch.ones(2), torch.ones(2), 2, "t", "m")
    with pytest.raises(pc.InputError, match="different widths"):
        pc.merge([coreset, other])
    with pytest.raises(pc.InputError, match="3 features and the points 2"):
        pc.update(coreset, (torch.zeros(4, 2), torch.zeros(4)), MODEL)
