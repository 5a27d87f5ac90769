"""Models whose posterior can be known, and coresets whose distance to it is measured."""

from __future__ import annotations

from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import FullData, MemoryData, Points
from pseudocoresets.evaluation.distances import Distances, posterior_distances
from pseudocoresets.methods.posterior_problem import Method, PosteriorProblem
from pseudocoresets.methods.solvers import METHODS
from pseudocoresets.models.glm import (
    FunctionModel,
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SmoothModel,
    SoftmaxRegression,
)
from pseudocoresets.sources.gaussian_fit import find_mode, fit_gaussian
from pseudocoresets.sources.reference import (
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
    "Points",
    "PoissonRegression",
    "PosteriorProblem",
    "PosteriorSample",
    "SmoothModel",
    "SoftmaxRegression",
    "find_mode",
    "fit_gaussian",
    "gaussian_fit",
    "kl_divergence",
    "posterior_distances",
    "reference_posterior",
    "sample_posterior_of",
]
