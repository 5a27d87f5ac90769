"""Models whose posterior can be known, and coresets whose distance to it is measured."""

from __future__ import annotations

from pseudocoresets.posterior.approximation import find_mode, fit_gaussian
from pseudocoresets.posterior.distances import Distances, posterior_distances
from pseudocoresets.posterior.gaussian import Gaussian, kl_divergence
from pseudocoresets.posterior.methods import METHODS
from pseudocoresets.posterior.models import (
    FunctionModel,
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SmoothModel,
    SoftmaxRegression,
)
from pseudocoresets.posterior.points import FullData, MemoryData, WeightedPoints
from pseudocoresets.posterior.problem import Method, PosteriorProblem
from pseudocoresets.posterior.reference import (
    NutsPlan,
    PosteriorSample,
    gaussian_fit,
    reference_posterior,
    sample_posterior_of,
)

__all__ = [
    "METHODS",
    "Distances",
    "FullData",
    "FunctionModel",
    "Gaussian",
    "GaussianMean",
    "LinearRegression",
    "LogisticRegression",
    "MemoryData",
    "Method",
    "NutsPlan",
    "PoissonRegression",
    "PosteriorProblem",
    "PosteriorSample",
    "SmoothModel",
    "SoftmaxRegression",
    "WeightedPoints",
    "find_mode",
    "fit_gaussian",
    "gaussian_fit",
    "kl_divergence",
    "posterior_distances",
    "reference_posterior",
    "sample_posterior_of",
]
