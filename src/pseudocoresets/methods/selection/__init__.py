"""Coresets of real points, by name; a random choice is the control that every table carries."""

from __future__ import annotations

from pseudocoresets.core.registry import Registry
from pseudocoresets.methods.selection.embeddings import Herding, KCenter
from pseudocoresets.methods.selection.forgetting import Forgetting
from pseudocoresets.methods.selection.random import Random, random_per_class
from pseudocoresets.methods.selection.selection import Selection, require_class_size

__all__ = [
    "NOISES",
    "SELECTIONS",
    "Forgetting",
    "Herding",
    "KCenter",
    "Random",
    "Selection",
    "random_per_class",
    "require_class_size",
    "selection_of_start",
]

_SELECTIONS: tuple[Selection, ...] = (Random(), Herding(), KCenter(), Forgetting())
SELECTIONS: Registry[Selection] = Registry("selection", {each.name: each for each in _SELECTIONS})
"""Every selection of real images by name."""

NOISES = ("noise", "faint-noise")
"""In place of a selection's name: standard normal images, or such images divided by their norms, with the labels that a
random selection has."""


def selection_of_start(initialisation: str) -> Selection:
    """The selection whose labels, and unless they are noise whose images, a construction starts from."""
    return SELECTIONS["random" if initialisation in NOISES else initialisation]
