"""Construction methods by name: one gradient estimator each."""

from __future__ import annotations

from collections.abc import Callable

from pseudocoresets.divergences.contrastive import ContrastiveDivergence
from pseudocoresets.divergences.method import Extra, Loss, Method, ParameterSource, Points, Problem, RealData
from pseudocoresets.registry import Registry

__all__ = [
    "METHODS",
    "ContrastiveDivergence",
    "Extra",
    "Loss",
    "Method",
    "ParameterSource",
    "Points",
    "Problem",
    "RealData",
]

METHODS: Registry[Callable[..., Method]] = Registry("method", {"cd": ContrastiveDivergence})
"""Every construction method by name."""
