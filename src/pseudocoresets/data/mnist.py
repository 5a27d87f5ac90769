"""MNIST and Fashion-MNIST: four IDX files each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pseudocoresets.core.progress import Progress
from pseudocoresets.data.catalogue import DatasetEntry, require_file
from pseudocoresets.data.download import Source

if TYPE_CHECKING:
    from pseudocoresets.data.dataset import Split

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_mnist(entry: DatasetEntry, root: Path, progress: Progress) -> tuple[Split, Split]:
    """Training and test data from the four IDX files of ``entry``."""
    train_images, train_labels, test_images, test_labels = (require_file(root, name) for name in entry.files)
    return (
        _split(entry, train_images, train_labels, entry.train_count),
        _split(entry, test_images, test_labels, entry.test_count),
    )


def _split(entry: DatasetEntry, image_file: Path, label_file: Path, count: int) -> Split:
    from pseudocoresets.data.dataset import Split
    from pseudocoresets.data.idx import read_idx

    split = Split(read_idx(image_file).unsqueeze(1), read_idx(label_file).long())
    return entry.check(split, count, image_file)


def _sources(
    folder: str, mirrors: tuple[str, ...], hashes: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[Source, ...]:
    return tuple(
        Source(tuple(f"{mirror}{name}.gz" for mirror in mirrors), md5, size, f"{folder}/{name}", "gzip")
        for name, md5, size in zip(_FILES, hashes, sizes, strict=True)
    )


MNIST = DatasetEntry(
    name="mnist",
    shape=(1, 28, 28),
    classes=tuple(str(digit) for digit in range(10)),
    train_count=60_000,
    test_count=10_000,
    licence="CC BY-SA 3.0",
    read=read_mnist,
    files=tuple(f"MNIST/raw/{name}" for name in _FILES),
    sources=_sources(
        "MNIST/raw",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (9_912_422, 28_881, 1_648_877, 4_542),
    ),
    flippable=False,
)

FASHION_MNIST = DatasetEntry(
    name="fashion-mnist",
    shape=(1, 28, 28),
    classes=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    train_count=60_000,
    test_count=10_000,
    licence="MIT",
    read=read_mnist,
    files=tuple(f"FashionMNIST/raw/{name}" for name in _FILES),
    sources=_sources(
        "FashionMNIST/raw",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        (26_421_880, 29_515, 4_422_102, 5_148),
    ),
)
