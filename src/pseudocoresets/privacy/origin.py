"""Is this the data that a coreset was made from? An audit of other data would find nothing, and mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from pseudocoresets.core.errors import InputError
from pseudocoresets.coreset import Coreset, require_same_shape
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.data.transforms import InputTransform, fit_normalisation
from pseudocoresets.data.zca_cache import FitOnDemand


def training_data(coreset: Coreset, data: Dataset) -> Dataset:
    """``data``, or the part of it that its ``holding_out`` leaves, whichever the coreset was made from.

    A file holds the number of the training images and their mean and deviation per channel, by which they are
    recognised; one with a guarantee holds public constants instead, and the answer is normalised by these. The test
    images stay those of ``data``: what was held out to choose settings is not theirs.
    """
    require_same_shape(coreset, data)
    data = data if coreset.guarantee is None else data.publicly_normalised()
    found = next((part for part in _parts(coreset, data) if _made_from(coreset, part)), None)
    if found is None:
        raise InputError(
            f"The coreset was made from {coreset.data_size:,} images, other ones than the {len(data.train):,} training "
            f"images of '{data.name}' given here or what holding out a tenth of them leaves; give exactly the data "
            "that it was made from."
        )
    return replace(found, test=data.test, transform=found.transform_source)


def _parts(coreset: Coreset, data: Dataset) -> Iterator[Dataset]:
    yield data
    origin = coreset.require_images().origin
    if origin is not None and origin.held_out:
        part = data
        for fraction, seed in origin.held_out:
            part = part.holding_out(fraction, seed)
        yield part
    yield data.holding_out()


def _made_from(coreset: Coreset, data: Dataset) -> bool:
    if len(data.train) != coreset.data_size:
        return False
    own, theirs = coreset.require_images(), _normalisation(coreset, data)
    return all(
        torch.allclose(a.cpu(), b.cpu(), rtol=1e-6, atol=1e-7)
        for a, b in ((own.mean, theirs.mean), (own.std, theirs.std))
    )


def _normalisation(coreset: Coreset, data: Dataset) -> InputTransform:
    """The transform of the data without whitening, which takes long to fit and says no more here."""
    source = data.transform_source
    if isinstance(source, FitOnDemand):
        return fit_normalisation(data.train.images, coreset.require_images().span)
    return data.transform
