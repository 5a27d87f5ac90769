"""Gradients through a coreset's own descent, in what is learned of it: four estimators with one interface."""

from pseudocoresets.gradients.descent import Descent, Outcome, Terminal, TerminalLoss
from pseudocoresets.gradients.estimators import (
    GRADIENTS,
    Detached,
    Differences,
    Exact,
    GradientEstimator,
    Stored,
    build_gradient,
)

__all__ = [
    "GRADIENTS",
    "Descent",
    "Detached",
    "Differences",
    "Exact",
    "GradientEstimator",
    "Outcome",
    "Stored",
    "Terminal",
    "TerminalLoss",
    "build_gradient",
]
