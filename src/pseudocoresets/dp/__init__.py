"""Differential privacy: a budget, the releases that spend it, the guarantee they add up to, and their noise."""

from pseudocoresets.dp.accounting import calibrated, combined, spent
from pseudocoresets.dp.guarantee import GUARANTEE_KIND, Budget, Guarantee, Release
from pseudocoresets.dp.mechanism import clipped, noisy_sum, per_example_gradients
from pseudocoresets.dp.secure import Entropy, SystemEntropy

__all__ = [
    "GUARANTEE_KIND",
    "Budget",
    "Entropy",
    "Guarantee",
    "Release",
    "SystemEntropy",
    "calibrated",
    "clipped",
    "combined",
    "noisy_sum",
    "per_example_gradients",
    "spent",
]
