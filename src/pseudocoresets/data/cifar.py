"""CIFAR-10 and CIFAR-100: official pickles, read batch by batch into one array."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.core.progress import Progress
from pseudocoresets.data.catalogue import DatasetEntry, require_file
from pseudocoresets.data.download import Source

if TYPE_CHECKING:
    import numpy as np

    from pseudocoresets.data.dataset import Split

_LABEL_KEYS = ("fine_labels", "labels")


def read_cifar(entry: DatasetEntry, root: Path, progress: Progress) -> tuple[Split, Split]:
    """Training and test data; the last of the entry's files is the test batch."""
    *train_files, test_file = (require_file(root, name) for name in entry.files)
    return _read(entry, train_files, entry.train_count), _read(entry, [test_file], entry.test_count)


def _read(entry: DatasetEntry, paths: list[Path], count: int) -> Split:
    import numpy as np
    import torch

    from pseudocoresets.data.dataset import Split

    images = np.empty((count, math.prod(entry.shape)), np.uint8)
    labels: list[int] = []
    for path in paths:
        rows, batch_labels = _read_batch(path, images.shape[1])
        end = len(labels) + len(rows)
        if end > count:
            raise FileFormatError(f"'{path.parent}' holds more than the {count} images that {entry.name} has.")
        images[len(labels) : end] = rows
        labels += batch_labels
    read = torch.from_numpy(images[: len(labels)]).reshape(-1, *entry.shape)
    return entry.check(Split(read, torch.tensor(labels, dtype=torch.int64)), count, paths[0].parent)


def _read_batch(path: Path, size: int) -> tuple[np.ndarray, list[int]]:
    """One image per row, red then green then blue, and the labels."""
    import numpy as np

    from pseudocoresets.data.pickles import read_pickle

    content = read_pickle(path)
    rows = _value(content, "data")
    labels = next((found for key in _LABEL_KEYS if (found := _value(content, key)) is not None), None)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape[1:] != (size,):
        raise FileFormatError(f"'{path}' holds no array 'data' of rows of {size} bytes; it is not a CIFAR batch.")
    if not isinstance(labels, list) or len(labels) != len(rows) or not all(map(_is_label, labels)):
        raise FileFormatError(f"'{path}' does not hold one label for each of its {len(rows)} images.")
    return rows, labels


def _is_label(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**31


def _value(content: Any, key: str) -> Any:
    """Python 2 wrote the keys as bytes."""
    return content.get(key.encode(), content.get(key)) if isinstance(content, dict) else None


def _source(archive: str, md5: str, size: int, folder: str) -> Source:
    return Source((f"https://www.cs.toronto.edu/~kriz/{archive}",), md5, size, folder, "tar")


CIFAR10 = DatasetEntry(
    name="cifar10",
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    train_count=50_000,
    test_count=10_000,
    licence="none stated (research use)",
    read=read_cifar,
    files=(
        *(f"cifar-10-batches-py/data_batch_{batch}" for batch in range(1, 6)),
        "cifar-10-batches-py/test_batch",
    ),
    sources=(
        _source("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071, "cifar-10-batches-py"),
    ),
    whiten=True,
)

# fmt: off
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
    "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
    "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew",
    "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower",
    "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout",
    "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)
# fmt: on

CIFAR100 = DatasetEntry(
    name="cifar100",
    shape=(3, 32, 32),
    classes=CIFAR100_CLASSES,
    train_count=50_000,
    test_count=10_000,
    licence="none stated (research use)",
    read=read_cifar,
    files=("cifar-100-python/train", "cifar-100-python/test"),
    sources=(_source("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437, "cifar-100-python"),),
    whiten=True,
)
