"""Regressions with further parameters: against scipy.stats, by brute force, and as models of coresets by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import expit
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.core.points import Points, Rows
from pseudocoresets.models import (
    MODELS,
    GaussianRegression,
    NegativeBinomialRegression,
    OrdinalRegression,
    RandomIntercepts,
    SmoothModel,
    StudentTRegression,
    WeibullSurvival,
    build_model,
)
from pseudocoresets.sources.gaussian_fit import fit_gaussian

STREAM = np.random.default_rng(0)
X = STREAM.standard_normal((7, 2))
BETA = np.array([0.7, -0.4])
ETA = X @ BETA
COUNTS = STREAM.poisson(3.0, 7)
REAL = STREAM.standard_normal(7)
TIMES = STREAM.exponential(size=7) + 0.1
EVENTS = np.array([1, 0, 1, 1, 0, 1, 1.0])
LEVELS = np.array([0, 1, 2, 3, 1, 0, 3.0])
GROUPS = np.array([0, 1, 2, 0, 1, 2, 0.0])
CUTS = np.cumsum([-1.0, np.exp(0.2), np.exp(-0.5)])


def ordinal_probabilities() -> np.ndarray:
    below = np.concatenate([np.zeros((7, 1)), expit(CUTS - ETA[:, None]), np.ones((7, 1))], 1)
    return np.diff(below, axis=1)


def weibull() -> np.ndarray:
    shape, scale = np.exp(0.3), np.exp(ETA)
    seen, censored = (getattr(stats.weibull_min, name)(TIMES, shape, scale=scale) for name in ("logpdf", "logsf"))
    return np.where(EVENTS == 1, seen, censored)


MIXED = np.array([0.3, -1.0, 2.0, np.log(0.5)])
"""Three groups' intercepts, and log tau."""
SHIFTED = ETA + MIXED[GROUPS.astype(int)]

CASES: dict[str, tuple[SmoothModel, list[float], np.ndarray, np.ndarray, np.ndarray]] = {
    "gaussian": (GaussianRegression(2), [0.3], X, REAL, stats.norm.logpdf(REAL, ETA, np.exp(0.3))),
    "student-t": (StudentTRegression(2, degrees=3.5), [0.3], X, REAL, stats.t.logpdf(REAL, 3.5, ETA, np.exp(0.3))),
    "negative-binomial": (
        NegativeBinomialRegression(2),
        [0.3],
        X,
        COUNTS,
        stats.nbinom.logpmf(COUNTS, np.exp(0.3), np.exp(0.3) / (np.exp(0.3) + np.exp(ETA))),
    ),
    "ordinal": (
        OrdinalRegression(2, levels=4),
        [-1.0, 0.2, -0.5],
        X,
        LEVELS,
        np.log(ordinal_probabilities()[np.arange(7), LEVELS.astype(int)]),
    ),
    "weibull": (WeibullSurvival(2), [0.3], X, np.stack([TIMES, EVENTS], 1), weibull()),
    "random-intercepts": (
        RandomIntercepts(2, 2.0, groups=3),
        [*MIXED, 0.3],
        np.c_[X, GROUPS],
        REAL,
        stats.norm.logpdf(REAL, SHIFTED, np.exp(0.3)),
    ),
    "random-intercepts-poisson": (
        RandomIntercepts(2, 2.0, groups=3, family="poisson"),
        [*MIXED],
        np.c_[X, GROUPS],
        COUNTS,
        stats.poisson.logpmf(COUNTS, np.exp(SHIFTED)),
    ),
    "random-intercepts-logistic": (
        RandomIntercepts(2, 2.0, groups=3, family="logistic"),
        [*MIXED[:3] / 0.5, MIXED[3]],
        np.c_[X, GROUPS],
        EVENTS,
        stats.bernoulli.logpmf(EVENTS.astype(int), expit(SHIFTED)),
    ),
}


def tensors(name: str) -> tuple[SmoothModel, Tensor, Tensor, Tensor, Tensor]:
    model, extra, x, y, expected = CASES[name]
    theta, x, y, expected = (torch.tensor(np.asarray(each, float)) for each in ([*BETA, *extra], x, y, expected))
    return model, theta, x, y, expected


@pytest.mark.parametrize("name", CASES)
def test_log_likelihoods_are_those_of_scipy(name: str) -> None:
    model, theta, x, y, expected = tensors(name)
    assert model.size == len(theta)
    model.check_data(x, y)
    torch.testing.assert_close(model.log_likelihood(theta, x, y), expected)
    both = torch.stack([theta, theta + 0.1])
    torch.testing.assert_close(model.log_likelihood(both, x, y)[0], expected)
    torch.testing.assert_close(model.log_likelihood(both, x, y)[1], model.log_likelihood(theta + 0.1, x, y))


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_both_orders_are_right(name: str) -> None:
    model, theta, x, y, _ = tensors(name)
    features, last = x[:3, :2].clone(), x[:3, 2:]

    def value(parameters: Tensor, points: Tensor) -> Tensor:
        return model.log_likelihood(parameters, torch.cat([points, last], 1), y[:3])

    inputs = (theta.requires_grad_(), features.requires_grad_())
    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


def test_ordinal_probabilities_sum_to_one_and_may_be_soft() -> None:
    model, theta, x, _, _ = tensors("ordinal")
    logs = torch.stack([model.log_likelihood(theta, x, torch.full((7,), float(k))) for k in range(4)], 1)
    torch.testing.assert_close(logs.exp().sum(1), torch.ones(7, dtype=torch.float64))
    soft = torch.rand(7, 4, dtype=torch.float64).softmax(1)
    torch.testing.assert_close(model.log_likelihood(theta, x, soft), (soft * logs).sum(1))


def data_for(name: str, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    stream = np.random.default_rng(1)
    x = np.c_[stream.standard_normal((count, 2)), np.ones(count)]
    eta = x @ np.array([0.8, -0.5, 0.3])
    if name.startswith("random-intercepts"):
        groups = np.arange(count) % 4
        eta = eta + 0.7 * stream.standard_normal(4)[groups]
        x = np.c_[x, groups]
    draws = {
        "gaussian-mean": lambda: np.zeros(count),
        "softmax": lambda: (eta > 0).astype(float) + (eta > 1),
        "ordinal": lambda: (eta + stream.logistic(size=count) > 0).astype(float) + (eta > 1),
        "student-t": lambda: eta + stream.standard_t(4, count),
        "negative-binomial": lambda: stream.negative_binomial(2, 2 / (2 + np.exp(eta))),
        "weibull": lambda: np.c_[np.exp(eta) * stream.weibull(1.5, count), stream.random(count) < 0.7],
    }
    if "logistic" in name:
        return x, (stream.random(count) < expit(eta)).astype(float)
    if "poisson" in name:
        return x, stream.poisson(np.exp(eta))
    x = x[:, :2] if name in ("ordinal", "gaussian-mean") else x
    return x, draws.get(name, lambda: eta + 0.5 * stream.standard_normal(count))()


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_has_a_coreset(name: str) -> None:
    """By nearest Gaussians, 30 pseudo-points are near to 400 data, and a thousand times nearer than a random 30."""
    x, y = data_for(name)
    model = build_model(name, (x, y))
    coreset = pc.construct((x, y), model=name, method="moments", size=30, check=False)
    uniform = pc.construct((x, y), model=model, method="uniform", size=30)
    full = fit_gaussian(model, Rows(x, y))
    near, far = (float(kl_divergence(full, fit_gaussian(model, each.points))) for each in (coreset, uniform))
    assert near < min(0.005, 1e-3 * far)
    if name.startswith("random-intercepts"):
        groups = coreset.x[:, -1]
        assert float((groups - groups.round()).abs().max()) < 1e-9
        assert len(groups.round().unique()) == 4


@pytest.mark.parametrize(
    ("name", "y", "message"),
    [
        ("negative-binomial", [-1.0, 2.0], r"takes counts \(0, 1, 2, ...\); got -1"),
        ("poisson", [-1.5, 2.0], r"takes counts \(0, 1, 2, ...\); got -1.5"),
        ("ordinal", [0.5, 1.0], "takes levels 0 to 1"),
        ("ordinal", [1.0, 2.0], "without a gap; no row is of 0"),
        ("softmax", [0.0, 2.0], "without a gap; no row is of 1"),
        ("linear", [[1.0, 2.0], [3.0, 4.0]], r"one target per row; got targets of shape \(2, 2\)"),
        ("logistic", [[1.0, 0.0], [0.0, 1.0]], "one target per row"),
        ("student-t", [[1.0, 0.0], [0.0, 1.0]], "one target per row"),
        ("random-intercepts", [[1.0, 0.0], [0.0, 1.0]], "one target per row"),
        ("weibull", [1.0, 2.0], r"targets \(n, 2\)"),
        ("weibull", [[0.0, 1.0], [1.0, 1.0]], "must be positive"),
        ("logistic", [-1.0, 1.0], r"become \(y \+ 1\) / 2"),
        ("random-intercepts-poisson", [-1.0, 1.0], "takes counts"),
        ("random-intercepts-logistic", [-1.0, 1.0], "targets of 0 and 1"),
        ("nonsense", [0.0, 1.0], "There is no model named 'nonsense'"),
    ],
)
def test_targets_that_a_model_cannot_have_are_refused(name: str, y: list[float], message: str) -> None:
    with pytest.raises(pc.InputError, match=message):
        pc.construct(([[1.0, 0.0], [2.0, 1.0]], y), model=name, size=1)


def test_groups_must_be_numbered() -> None:
    model = RandomIntercepts(1, groups=2)
    with pytest.raises(pc.InputError, match="groups 0 to 1"):
        model.check_data(torch.tensor([[1.0, 2.0]]), torch.zeros(1))


def test_censored_times_say_that_the_event_came_later() -> None:
    """A posterior that ignores censoring puts the scale lower; one that knows it agrees with the truth."""
    stream = np.random.default_rng(2)
    times = 3.0 * stream.weibull(1.5, 4000)
    seen = np.minimum(times, 2.0)
    x = torch.ones(4000, 1, dtype=torch.float64)
    y = torch.tensor(np.stack([seen, times <= 2.0], 1))
    fitted = fit_gaussian(WeibullSurvival(1), Points(x, y, torch.ones(4000, dtype=torch.float64)))
    error = fitted.standard_deviation
    assert ((fitted.mean - torch.tensor([np.log(3.0), np.log(1.5)])).abs() < 4 * error).all()


@pytest.mark.parametrize("name", ["random-intercepts", "random-intercepts-logistic"])
def test_intercepts_have_a_prior_of_their_own(name: str) -> None:
    """N(0, tau^2), which in units of tau is N(0, 1)."""
    model, theta, _, _, _ = tensors(name)
    assert isinstance(model, RandomIntercepts)
    torch.testing.assert_close(model.intercepts(theta), torch.tensor(MIXED[:3]))
    other = theta.clone()
    other[5] = 0.1
    values = []
    for each, tau in ((theta, 0.5), (other, np.exp(0.1))):
        others = stats.norm.logpdf(np.r_[each[:2], each[5:]], 0, 2.0).sum()
        scale = 1.0 if model.scaled else tau
        values.append(others + stats.norm.logpdf(each[2:5], 0, scale).sum())
    assert float(model.log_prior(other) - model.log_prior(theta)) == pytest.approx(values[1] - values[0])
    leaf = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_prior(leaf), leaf)
    torch.testing.assert_close(model.log_prior_gradient(theta), gradient)


def test_binary_data_of_small_groups_do_not_fix_their_spread_at_zero() -> None:
    stream = np.random.default_rng(8)
    groups = np.arange(300) % 12
    chance = expit(stream.normal(0, 0.6, 12)[groups])
    rows = Rows(np.c_[np.ones(300), groups], (stream.random(300) < chance).astype(float))
    found = fit_gaussian(build_model("random-intercepts-logistic", rows), rows)
    assert abs(float(found.mean[-1]) - np.log(0.6)) < 3 * float(found.standard_deviation[-1])


def test_more_parameters_than_can_be_measured_are_refused_at_once() -> None:
    with pytest.raises(pc.InputError, match="3,000 parameters; a posterior of at most 2,001"):
        pc.construct((np.zeros((5, 3000)), np.ones(5)), model="logistic", method="giga", size=2)
