"""Coresets of real points, by name; a random choice is the control that every table carries."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pseudocoresets.core.registry import Registry
from pseudocoresets.data.dataset import Split
from pseudocoresets.methods.selection.random import random_per_class, require_class_size

__all__ = ["SELECTIONS", "random_per_class", "require_class_size"]

SELECTIONS: Registry[Callable[[Split, int, int], Tensor]] = Registry("selection", {"random": random_per_class})
"""Every selection by name: a function of (training data, images per class, seed) that returns indices."""
