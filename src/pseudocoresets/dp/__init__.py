"""Differential privacy: a budget, the releases that spend it, the guarantee they add up to, and their noise."""

from pseudocoresets.dp.accounting import calibrated, combined, spent
from pseudocoresets.dp.guarantee import GUARANTEE_KIND, Budget, Guarantee, Release
from pseudocoresets.dp.layerwise import LayerwiseGradients, is_layerwise
from pseudocoresets.dp.mechanism import clipped, clipped_sum, noisy_sum, per_example_gradients
from pseudocoresets.dp.secure import Entropy, SystemEntropy
from pseudocoresets.dp.vectors import ExampleVectors, Stacked

__all__ = [
    "GUARANTEE_KIND",
    "Budget",
    "Entropy",
    "ExampleVectors",
    "Guarantee",
    "LayerwiseGradients",
    "Release",
    "Stacked",
    "SystemEntropy",
    "calibrated",
    "clipped",
    "clipped_sum",
    "combined",
    "is_layerwise",
    "noisy_sum",
    "per_example_gradients",
    "spent",
]
