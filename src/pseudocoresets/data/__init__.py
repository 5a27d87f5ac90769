"""Data sets by name, their preparation and their augmentation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pseudocoresets.data.augmentation import Augmentation, Transformation, dsa
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.data.digits import load_digits
from pseudocoresets.data.transforms import InputTransform, fit_normalisation, fit_zca
from pseudocoresets.registry import Registry

__all__ = [
    "DATASETS",
    "Augmentation",
    "Dataset",
    "InputTransform",
    "Split",
    "Transformation",
    "dsa",
    "fit_normalisation",
    "fit_zca",
    "load_dataset",
]

DATASETS: Registry[Callable[[Path], Dataset]] = Registry("data set", {"digits": lambda root: load_digits()})
"""Every data set by name; an entry loads the data below a folder."""


def load_dataset(name: str, root: str | os.PathLike[str] = "data") -> Dataset:
    """The data set ``name``, read from (or fetched into) the folder ``root``."""
    return DATASETS[name](Path(root))
