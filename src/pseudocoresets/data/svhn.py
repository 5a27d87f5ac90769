"""SVHN, cropped digits: one MATLAB file for training and one for test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.core.progress import Progress
from pseudocoresets.data.catalogue import DatasetEntry, require_file
from pseudocoresets.data.download import Source

if TYPE_CHECKING:
    from pseudocoresets.data.dataset import Split


def read_svhn(entry: DatasetEntry, root: Path, progress: Progress) -> tuple[Split, Split]:
    """Training and test data; the files call the digit zero 10."""
    train, test = (require_file(root, name) for name in entry.files)
    return (
        entry.check(_read(train), entry.train_count, train),
        entry.check(_read(test), entry.test_count, test),
    )


def _read(path: Path) -> Split:
    import numpy as np
    import torch

    from pseudocoresets.data.dataset import Split
    from pseudocoresets.data.matlab import read_matlab

    content = read_matlab(path, ("X", "y"))
    images, labels = content["X"], content["y"]
    if images.ndim != 4 or images.dtype != np.uint8:
        raise FileFormatError(f"'{path}' holds X as {images.dtype} {images.shape}, not as uint8 (32, 32, 3, n).")
    if not np.array_equal(labels, np.rint(labels)):
        raise FileFormatError(f"'{path}' holds y as {labels.dtype}, not as whole numbers.")
    labels = labels.ravel().astype(np.int64)
    labels[labels == 10] = 0
    return Split(torch.from_numpy(np.ascontiguousarray(images.transpose(3, 2, 0, 1))), torch.from_numpy(labels))


def _source(name: str, md5: str, size: int) -> Source:
    return Source((f"http://ufldl.stanford.edu/housenumbers/{name}",), md5, size, name)


SVHN = DatasetEntry(
    name="svhn",
    shape=(3, 32, 32),
    classes=tuple(str(digit) for digit in range(10)),
    train_count=73_257,
    test_count=26_032,
    licence="non-commercial use only",
    read=read_svhn,
    files=("train_32x32.mat", "test_32x32.mat"),
    sources=(
        _source("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
        _source("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
    ),
    flippable=False,
)
