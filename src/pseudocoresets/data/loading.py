"""Data sets by name: the catalogue, and reading what it names, or a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from pseudocoresets.core.errors import DataUnavailableError, InputError
from pseudocoresets.core.progress import Progress
from pseudocoresets.core.registry import Registry
from pseudocoresets.data.catalogue import DatasetEntry
from pseudocoresets.data.cifar import CIFAR10, CIFAR100
from pseudocoresets.data.cifar10_c import CIFAR10_C, CIFAR10_C_CORRUPTIONS, corrupted_entry
from pseudocoresets.data.digits import DIGITS
from pseudocoresets.data.mnist import FASHION_MNIST, MNIST
from pseudocoresets.data.svhn import SVHN
from pseudocoresets.data.tiny_imagenet import TINY_IMAGENET

if TYPE_CHECKING:
    import torch

    from pseudocoresets.data.dataset import Dataset

FOLDER_PREFIX = "folder:"

DATASETS: Registry[DatasetEntry] = Registry(
    "data set",
    {entry.name: entry for entry in (DIGITS, MNIST, FASHION_MNIST, SVHN, CIFAR10, CIFAR100, TINY_IMAGENET, CIFAR10_C)},
    group="pseudocoresets.datasets",
    accepts=lambda part: isinstance(part, DatasetEntry),
)
"""Every data set by name."""


def load_dataset(
    name: str,
    root: str | os.PathLike[str] = "data",
    *,
    whiten: bool | None = None,
    size: int | None = None,
    device: str | torch.device | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """The data set ``name``, read from (or fetched into) the folder ``root``.

    ``name`` is one of ``DATASETS``, ``folder:PATH`` or ``folder:PATH?size=32`` for images of your own, or
    ``cifar10-c?corruption=fog&severity=3`` for CIFAR-10 with one corrupted test set. ``whiten`` overrides whether
    inputs are ZCA-whitened, which is fitted on ``device``; ``size`` scales the images of a folder.
    """
    if name.startswith(FOLDER_PREFIX):
        from pseudocoresets.data.folder import load_folder

        path, size = _folder_options(name, size)
        return load_folder(path, size, bool(whiten), device, progress)
    if size is not None:
        raise InputError(f"Only the images of a folder can be scaled; '{name}' has its own size.")
    entry, folder = find_entry(name), Path(root)
    if not entry.is_present(folder):
        if not download:
            raise DataUnavailableError(
                f"The folder '{folder}' does not hold {name}: '{entry.missing(folder)[0]}' is missing. "
                f"'bpc data fetch {name.partition('?')[0]}' brings it."
            )
        entry.fetch(folder, progress)
    return entry.load(folder, whiten, device, progress)


def full_name(name: str) -> str:
    """The same data set under a name that means it from every working folder: the path of a folder is absolute."""
    if not name.startswith(FOLDER_PREFIX):
        return name
    from pseudocoresets.data.folder import resolved_folder

    path, size = _folder_options(name, None)
    suffix = "" if size is None else f"?size={size}"
    return f"{FOLDER_PREFIX}{resolved_folder(path)}{suffix}"


def find_entry(name: str) -> DatasetEntry:
    """The catalogue's entry for ``name``, which may name one corruption of CIFAR-10-C."""
    base, _, query = name.partition("?")
    if not query:
        return DATASETS[name]
    options = dict(parse_qsl(query, keep_blank_values=True))
    if base != CIFAR10_C.name or set(options) != {"corruption", "severity"}:
        raise InputError(
            f"'{name}' is not understood; options go with 'folder:PATH?size=32' and "
            "'cifar10-c?corruption=fog&severity=3' only."
        )
    if options["corruption"] not in CIFAR10_C_CORRUPTIONS:
        raise InputError(
            f"CIFAR-10-C has no corruption '{options['corruption']}'; it has {', '.join(CIFAR10_C_CORRUPTIONS)}."
        )
    return corrupted_entry(options["corruption"], _whole_number("severity", options["severity"]))


def _folder_options(name: str, size: int | None) -> tuple[str, int | None]:
    path, _, query = name.removeprefix(FOLDER_PREFIX).rpartition("?size=")
    if not path:
        return query, size
    asked = _whole_number("size", query)
    if size not in (None, asked):
        raise InputError(f"'{name}' asks for the size {asked}, and the argument for {size}; give one of them.")
    return path, asked


def _whole_number(option: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise InputError(f"The option {option} must be a whole number from 1 to 999,999,999; got '{text[:40]}'.")
    return int(text)
