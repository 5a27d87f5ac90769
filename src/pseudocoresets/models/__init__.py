"""Models: networks, generalised linear models, the Gaussian mean, and any model given as functions."""

from __future__ import annotations

from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.expectation import Expectation, SmoothModel, check_data
from pseudocoresets.models.external import JaxModel, NumpyModel
from pseudocoresets.models.functions import FunctionModel
from pseudocoresets.models.gaussian_mean import GaussianMean
from pseudocoresets.models.gaussian_process import GaussianProcess, InducingPoints
from pseudocoresets.models.glm import (
    LinearPredictorModel,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from pseudocoresets.models.named import MODELS, build_model
from pseudocoresets.models.prior import NormalPrior
from pseudocoresets.models.programs import numpyro_model, pymc_model, stan_data, stan_model
from pseudocoresets.models.regression import (
    ExtendedRegression,
    GaussianRegression,
    NegativeBinomialRegression,
    OrdinalRegression,
    RandomIntercepts,
    StudentTRegression,
    WeibullSurvival,
)

__all__ = [
    "MODELS",
    "Classifier",
    "Expectation",
    "ExtendedRegression",
    "FunctionModel",
    "GaussianMean",
    "GaussianProcess",
    "GaussianRegression",
    "InducingPoints",
    "JaxModel",
    "LinearPredictorModel",
    "LinearRegression",
    "LogisticRegression",
    "NegativeBinomialRegression",
    "NormalPrior",
    "NumpyModel",
    "OrdinalRegression",
    "PoissonRegression",
    "RandomIntercepts",
    "SmoothModel",
    "SoftmaxRegression",
    "StudentTRegression",
    "WeibullSurvival",
    "build_model",
    "check_data",
    "numpyro_model",
    "pymc_model",
    "stan_data",
    "stan_model",
]
