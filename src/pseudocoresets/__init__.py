"""Bayesian pseudo-coresets: tiny synthetic data sets whose posterior stands in for the full one.

import pseudocoresets as pc

data = pc.load_dataset("digits")
experts = pc.train_experts(data, network="convnet", count=5, epochs=12, out="experts/")
coreset = pc.construct(data, experts, method="cd", ipc=1)
samples = pc.sample_posterior(coreset, sampler="langevin", start="cold", chains=5)
report = pc.evaluate(samples, data.test)
"""

from pseudocoresets.construct import ConstructionSettings, construct
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.errors import (
    DataUnavailableError,
    DeviceMemoryError,
    DivergenceError,
    FileFormatError,
    InputError,
    PseudocoresetsError,
)
from pseudocoresets.evaluation import EvaluationReport, evaluate
from pseudocoresets.experts import Experts, load_experts, train_experts
from pseudocoresets.inference import PosteriorSamples, SamplingSettings, sample_posterior
from pseudocoresets.networks import build_network

__all__ = [
    "ConstructionSettings",
    "Coreset",
    "DataUnavailableError",
    "Dataset",
    "DeviceMemoryError",
    "DivergenceError",
    "EvaluationReport",
    "Experts",
    "FileFormatError",
    "InputError",
    "PosteriorSamples",
    "PseudocoresetsError",
    "SamplingSettings",
    "build_network",
    "construct",
    "evaluate",
    "load_dataset",
    "load_experts",
    "sample_posterior",
    "train_experts",
]
