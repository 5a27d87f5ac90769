"""Data sets by name, their preparation and their augmentation.

A name is imported when it is first used: the catalogue can be read without torch, which takes a second to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pseudocoresets.data.augmentation import AUGMENTATIONS as AUGMENTATIONS
    from pseudocoresets.data.augmentation import AnyAugmentation as AnyAugmentation
    from pseudocoresets.data.augmentation import Augmentation as Augmentation
    from pseudocoresets.data.augmentation import Strengths as Strengths
    from pseudocoresets.data.augmentation import Transformation as Transformation
    from pseudocoresets.data.augmentation import dsa as dsa
    from pseudocoresets.data.catalogue import DatasetEntry as DatasetEntry
    from pseudocoresets.data.cifar10_c import CIFAR10_C_CORRUPTIONS as CIFAR10_C_CORRUPTIONS
    from pseudocoresets.data.cifar10_c import load_cifar10_c as load_cifar10_c
    from pseudocoresets.data.dataset import Dataset as Dataset
    from pseudocoresets.data.dataset import Split as Split
    from pseudocoresets.data.dataset import stratified_split as stratified_split
    from pseudocoresets.data.download import Source as Source
    from pseudocoresets.data.folder import load_folder as load_folder
    from pseudocoresets.data.loading import DATASETS as DATASETS
    from pseudocoresets.data.loading import FOLDER_PREFIX as FOLDER_PREFIX
    from pseudocoresets.data.loading import find_entry as find_entry
    from pseudocoresets.data.loading import full_name as full_name
    from pseudocoresets.data.loading import load_dataset as load_dataset
    from pseudocoresets.data.transforms import InputTransform as InputTransform
    from pseudocoresets.data.transforms import fit_normalisation as fit_normalisation
    from pseudocoresets.data.transforms import fit_zca as fit_zca

_HOMES = {
    "augmentation": ("AUGMENTATIONS", "AnyAugmentation", "Augmentation", "Strengths", "Transformation", "dsa"),
    "catalogue": ("DatasetEntry",),
    "cifar10_c": ("CIFAR10_C_CORRUPTIONS", "load_cifar10_c"),
    "dataset": ("Dataset", "Split", "stratified_split"),
    "download": ("Source",),
    "folder": ("load_folder",),
    "loading": ("DATASETS", "FOLDER_PREFIX", "find_entry", "full_name", "load_dataset"),
    "transforms": ("InputTransform", "fit_normalisation", "fit_zca"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF.keys() - {"FOLDER_PREFIX", "find_entry", "full_name"})


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pseudocoresets.data' has no attribute '{name}'")
    return getattr(importlib.import_module(f"pseudocoresets.data.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
