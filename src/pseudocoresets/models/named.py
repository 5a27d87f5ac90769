"""Models by name, with what they must know of the data: widths, classes, groups, noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import AnyRows, as_rows
from pseudocoresets.core.registry import Registry
from pseudocoresets.core.targets import all_points
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.gaussian_mean import GaussianMean
from pseudocoresets.models.glm import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
    require_one_target,
)
from pseudocoresets.models.regression import (
    Family,
    GaussianRegression,
    NegativeBinomialRegression,
    OrdinalRegression,
    RandomIntercepts,
    StudentTRegression,
    WeibullSurvival,
)

ModelBuilder = Callable[[Tensor, Tensor, float], SmoothModel]
"""A model for data x and y with a prior scale."""


def _gaussian_mean(x: Tensor, y: Tensor, prior_scale: float) -> SmoothModel:
    return GaussianMean(prior_scale, torch.cov(x.T).reshape(x.shape[1], x.shape[1]))


def _linear(x: Tensor, y: Tensor, prior_scale: float) -> SmoothModel:
    """With the noise of the least-squares fit."""
    require_one_target(y)
    residual = y - x @ torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution[:, 0]
    noise = math.sqrt(float(residual @ residual) / max(1, len(y) - x.shape[1]))
    return LinearRegression(x.shape[1], prior_scale, noise_scale=max(noise, 1e-6))


def _softmax(x: Tensor, y: Tensor, prior_scale: float) -> SmoothModel:
    return SoftmaxRegression(x.shape[1], _classes(y), prior_scale)


def _ordinal(x: Tensor, y: Tensor, prior_scale: float) -> SmoothModel:
    return OrdinalRegression(x.shape[1], prior_scale, levels=_classes(y))


def _classes(y: Tensor) -> int:
    """How many there are; numbered 0, 1, ..., so that the model has none that no row is of."""
    if y.ndim == 2:
        return y.shape[1]
    classes = max(2, int(y.max()) + 1)
    unseen = set(range(min(classes, len(y) + 1))) - set(y.tolist())
    if unseen and bool((y == y.round()).all()):
        raise InputError(f"Classes and levels are numbered 0, 1, ... without a gap; no row is of {min(unseen)}.")
    return classes


def _random_intercepts(x: Tensor, y: Tensor, prior_scale: float, family: Family) -> SmoothModel:
    return RandomIntercepts(x.shape[1] - 1, prior_scale, groups=int(x[:, -1].max()) + 1, family=family)


def _plain(kind: Callable[[int, float], SmoothModel]) -> ModelBuilder:
    return lambda x, y, prior_scale: kind(x.shape[1], prior_scale)


MODELS: Registry[ModelBuilder] = Registry(
    "model",
    {
        "gaussian-mean": _gaussian_mean,
        "linear": _linear,
        "gaussian": _plain(GaussianRegression),
        "student-t": _plain(StudentTRegression),
        "logistic": _plain(LogisticRegression),
        "softmax": _softmax,
        "ordinal": _ordinal,
        "poisson": _plain(PoissonRegression),
        "negative-binomial": _plain(NegativeBinomialRegression),
        "weibull": _plain(WeibullSurvival),
        "random-intercepts": partial(_random_intercepts, family="gaussian"),
        "random-intercepts-logistic": partial(_random_intercepts, family="logistic"),
        "random-intercepts-poisson": partial(_random_intercepts, family="poisson"),
    },
)
"""Every model that has a name."""


def build_model(name: str, data: AnyRows, prior_scale: float = 1.0) -> SmoothModel:
    """The model of that name for these data, which it checks.

    ``linear`` takes its noise from a least-squares fit and ``gaussian-mean`` its covariance from the data; ``softmax``,
    ``ordinal`` and the random intercepts count classes, levels and groups.
    """
    build = MODELS[name]
    every = all_points(as_rows(data))
    if name.startswith("random-intercepts") and every.x.shape[1] < 2:
        raise InputError("Random intercepts need a feature, such as a column of ones, before the column of groups.")
    model = build(every.x, every.y, prior_scale)
    model.check_data(every.x, every.y)
    return model
