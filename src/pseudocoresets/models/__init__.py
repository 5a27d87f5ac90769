"""Models: networks, generalised linear models, the Gaussian mean, and any model given as functions."""

from __future__ import annotations

from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.expectation import Expectation, SmoothModel, check_data
from pseudocoresets.models.functions import FunctionModel
from pseudocoresets.models.gaussian_mean import GaussianMean
from pseudocoresets.models.glm import (
    LinearPredictorModel,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from pseudocoresets.models.prior import NormalPrior

__all__ = [
    "Classifier",
    "Expectation",
    "FunctionModel",
    "GaussianMean",
    "LinearPredictorModel",
    "LinearRegression",
    "LogisticRegression",
    "NormalPrior",
    "PoissonRegression",
    "SmoothModel",
    "SoftmaxRegression",
    "check_data",
]
