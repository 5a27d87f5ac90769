"""The handwritten digits shipped with scikit-learn: 1,797 grey images of 8 x 8 pixels, no download."""

from __future__ import annotations

import torch

from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.data.transforms import fit_normalisation
from pseudocoresets.seeds import generator_for

TRAINING_IMAGES = 1300
LEVELS = 16


def load_digits() -> Dataset:
    """A fixed random split: 1,300 images for training, 497 for test."""
    from sklearn.datasets import load_digits as load_from_scikit_learn

    bunch = load_from_scikit_learn()
    images = torch.from_numpy(bunch.images * (255 / LEVELS)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(labels), generator=generator_for(0, "digits split"))
    train, test = (
        Split(images[part], labels[part]) for part in (order[:TRAINING_IMAGES], order[TRAINING_IMAGES:])
    )
    return Dataset(
        name="digits",
        train=train,
        test=test,
        classes=tuple(str(digit) for digit in range(10)),
        transform=fit_normalisation(train.images),
        flippable=False,
    )
