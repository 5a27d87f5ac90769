"""The handwritten digits shipped with scikit-learn: 1,797 grey images of 8 x 8 pixels, no download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pseudocoresets.core.progress import Progress
from pseudocoresets.data.catalogue import DatasetEntry

if TYPE_CHECKING:
    from pseudocoresets.data.dataset import Dataset, Split

TRAINING_IMAGES = 1300
LEVELS = 16


def read_digits(entry: DatasetEntry, root: Path, progress: Progress) -> tuple[Split, Split]:
    """A fixed random split: 1,300 images for training, 497 for test."""
    import torch
    from sklearn.datasets import load_digits as load_from_scikit_learn

    from pseudocoresets.core.seeds import generator_for
    from pseudocoresets.data.dataset import Split

    bunch = load_from_scikit_learn()
    images = torch.from_numpy(bunch.images * (255 / LEVELS)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(labels), generator=generator_for(0, "digits split"))
    train, test = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    return Split(images[train], labels[train]), Split(images[test], labels[test])


def load_digits() -> Dataset:
    """The digits; they need no folder."""
    return DIGITS.load(Path())


DIGITS = DatasetEntry(
    name="digits",
    shape=(1, 8, 8),
    classes=tuple(str(digit) for digit in range(10)),
    train_count=TRAINING_IMAGES,
    test_count=497,
    licence="CC BY 4.0",
    read=read_digits,
    flippable=False,
)
