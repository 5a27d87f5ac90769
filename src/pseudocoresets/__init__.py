"""Bayesian pseudo-coresets: tiny synthetic data sets whose posterior stands in for the full one.

import pseudocoresets as pc

data = pc.load_dataset("digits")
experts = pc.train_experts(data, network="convnet", count=5, epochs=12, out="experts/")
coreset = pc.construct(data, experts, method="cd", ipc=1)
samples = pc.sample_posterior(coreset, sampler="langevin", chains=5)
report = pc.evaluate(samples, data.test)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pseudocoresets import data as data
    from pseudocoresets import dp as dp
    from pseudocoresets import gradients as gradients
    from pseudocoresets import kernels as kernels
    from pseudocoresets import methods as methods
    from pseudocoresets import models as models
    from pseudocoresets.construction import ConstructionSettings as ConstructionSettings
    from pseudocoresets.construction import construct as construct
    from pseudocoresets.construction import merge as merge
    from pseudocoresets.construction import update as update
    from pseudocoresets.core.errors import DataUnavailableError as DataUnavailableError
    from pseudocoresets.core.errors import DeviceMemoryError as DeviceMemoryError
    from pseudocoresets.core.errors import DivergenceError as DivergenceError
    from pseudocoresets.core.errors import FileFormatError as FileFormatError
    from pseudocoresets.core.errors import InputError as InputError
    from pseudocoresets.core.errors import PseudocoresetsError as PseudocoresetsError
    from pseudocoresets.core.points import Rows as Rows
    from pseudocoresets.coreset import Coreset as Coreset
    from pseudocoresets.data import Dataset as Dataset
    from pseudocoresets.data import load_dataset as load_dataset
    from pseudocoresets.evaluation import Agreement as Agreement
    from pseudocoresets.evaluation import EvaluationReport as EvaluationReport
    from pseudocoresets.evaluation import Predictions as Predictions
    from pseudocoresets.evaluation import agreement as agreement
    from pseudocoresets.evaluation import distance as distance
    from pseudocoresets.evaluation import evaluate as evaluate
    from pseudocoresets.inference import PosteriorSamples as PosteriorSamples
    from pseudocoresets.inference import SamplingSettings as SamplingSettings
    from pseudocoresets.inference import sample_posterior as sample_posterior
    from pseudocoresets.models import FunctionModel as FunctionModel
    from pseudocoresets.models import GaussianMean as GaussianMean
    from pseudocoresets.models import LinearRegression as LinearRegression
    from pseudocoresets.models import LogisticRegression as LogisticRegression
    from pseudocoresets.models import PoissonRegression as PoissonRegression
    from pseudocoresets.models import SoftmaxRegression as SoftmaxRegression
    from pseudocoresets.models.networks import build_network as build_network
    from pseudocoresets.presets import Preset as Preset
    from pseudocoresets.presets import preset as preset
    from pseudocoresets.privacy import AuditReport as AuditReport
    from pseudocoresets.privacy import audit as audit
    from pseudocoresets.sources.experts import Experts as Experts
    from pseudocoresets.sources.experts import load_experts as load_experts
    from pseudocoresets.sources.experts import train_experts as train_experts
    from pseudocoresets.sources.reference import reference_posterior as reference_posterior

_HOMES = {
    "pseudocoresets.construction": ("ConstructionSettings", "construct", "merge", "update"),
    "pseudocoresets.core.errors": (
        "DataUnavailableError",
        "DeviceMemoryError",
        "DivergenceError",
        "FileFormatError",
        "InputError",
        "PseudocoresetsError",
    ),
    "pseudocoresets.core.points": ("Rows",),
    "pseudocoresets.coreset": ("Coreset",),
    "pseudocoresets.data": ("Dataset", "load_dataset"),
    "pseudocoresets.evaluation": ("Agreement", "EvaluationReport", "Predictions", "agreement", "distance", "evaluate"),
    "pseudocoresets.inference": ("PosteriorSamples", "SamplingSettings", "sample_posterior"),
    "pseudocoresets.models": (
        "FunctionModel",
        "GaussianMean",
        "LinearRegression",
        "LogisticRegression",
        "PoissonRegression",
        "SoftmaxRegression",
    ),
    "pseudocoresets.models.networks": ("build_network",),
    "pseudocoresets.presets": ("Preset", "preset"),
    "pseudocoresets.privacy": ("AuditReport", "audit"),
    "pseudocoresets.sources.experts": ("Experts", "load_experts", "train_experts"),
    "pseudocoresets.sources.reference": ("reference_posterior",),
}
"""The public names by the module that defines each; a name is imported when it is first used."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_NAMESPACES = ("data", "dp", "gradients", "kernels", "methods", "models")

__all__ = sorted((*_HOME_OF, *_NAMESPACES))


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return importlib.import_module(f"pseudocoresets.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pseudocoresets' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
