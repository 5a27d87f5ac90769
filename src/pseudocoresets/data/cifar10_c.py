"""CIFAR-10-C: the official files of CIFAR-10's test images under 19 corruptions at five severities."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pseudocoresets._io.files import read_array
from pseudocoresets.core.errors import DataUnavailableError, FileFormatError, InputError
from pseudocoresets.core.progress import Progress
from pseudocoresets.data.catalogue import DatasetEntry
from pseudocoresets.data.cifar import CIFAR10
from pseudocoresets.data.download import Source

if TYPE_CHECKING:
    import numpy as np

    from pseudocoresets.data.dataset import Split

FOLDER = "CIFAR-10-C"
CIFAR10_C_CORRUPTIONS = (
    "brightness",
    "contrast",
    "defocus_blur",
    "elastic_transform",
    "fog",
    "frost",
    "gaussian_blur",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "jpeg_compression",
    "motion_blur",
    "pixelate",
    "saturate",
    "shot_noise",
    "snow",
    "spatter",
    "speckle_noise",
    "zoom_blur",
)
SEVERITIES = 5


def load_cifar10_c(root: str | os.PathLike[str], corruption: str, severity: int, count: int = 10_000) -> Split:
    """The test images under one corruption at a severity from 1 to 5, from the files in ``root/CIFAR-10-C``.

    A file holds the ``count`` test images five times, in the order of severity; only what is asked for is read.
    """
    import numpy as np
    import torch

    from pseudocoresets.data.dataset import Split

    if corruption not in CIFAR10_C_CORRUPTIONS:
        raise InputError(f"CIFAR-10-C has no corruption '{corruption}'; it has {', '.join(CIFAR10_C_CORRUPTIONS)}.")
    if severity not in range(1, SEVERITIES + 1):
        raise InputError(f"A severity is a whole number from 1 to {SEVERITIES}; got {severity}.")
    folder = Path(root) / FOLDER
    images = _open(folder / f"{corruption}.npy", (SEVERITIES * count, 32, 32, 3))
    labels = _open(folder / "labels.npy", (SEVERITIES * count,))
    part = slice((severity - 1) * count, severity * count)
    return CIFAR10.check(
        Split(
            torch.from_numpy(np.ascontiguousarray(images[part].transpose(0, 3, 1, 2))),
            torch.from_numpy(labels[part].astype(np.int64)),
        ),
        count,
        folder,
    )


def read_cifar10_c(entry: DatasetEntry, root: Path, progress: Progress) -> tuple[Split, Split]:
    raise InputError(
        f"{entry.name} is 95 test sets: name one, for example 'cifar10-c?corruption=fog&severity=3'. "
        f"Its corruptions are {', '.join(CIFAR10_C_CORRUPTIONS)}."
    )


def corrupted_entry(corruption: str, severity: int) -> DatasetEntry:
    """CIFAR-10 with its test data replaced by one corruption of it."""

    def read(entry: DatasetEntry, root: Path, progress: Progress) -> tuple[Split, Split]:
        train, _ = CIFAR10.read(CIFAR10, root, progress)
        return train, load_cifar10_c(root, corruption, severity)

    return replace(
        CIFAR10,
        name=f"cifar10-c?corruption={corruption}&severity={severity}",
        read=read,
        files=(*CIFAR10.files, *CIFAR10_C.files),
        sources=(*CIFAR10.sources, *CIFAR10_C.sources),
    )


def _open(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    if not path.is_file():
        raise DataUnavailableError(f"There is no file '{path}'; 'bpc data fetch cifar10-c' brings it (2.9 GB).")
    array = read_array(path)
    if array.shape != shape or array.dtype.kind not in "ui":
        raise FileFormatError(f"'{path}' holds {array.dtype} {array.shape} where CIFAR-10-C has bytes {shape}.")
    return array


CIFAR10_C = DatasetEntry(
    name="cifar10-c",
    shape=(3, 32, 32),
    classes=CIFAR10.classes,
    train_count=0,
    test_count=10_000 * SEVERITIES * len(CIFAR10_C_CORRUPTIONS),
    licence="CC BY 4.0",
    read=read_cifar10_c,
    files=tuple(f"{FOLDER}/{name}.npy" for name in (*CIFAR10_C_CORRUPTIONS, "labels")),
    sources=(
        Source(
            ("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1",),
            "56bf5dcef84df0e2308c6dcbcbbd8499",
            2_918_471_680,
            FOLDER,
            "tar",
        ),
    ),
    whiten=True,
)
