"""What comes in: labelled images as bytes, split into training and test data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pseudocoresets.data.transforms import InputTransform
from pseudocoresets.errors import InputError
from pseudocoresets.seeds import generator_for


@dataclass(frozen=True)
class Split:
    """Images ``(n, channels, height, width)`` as uint8 and their labels ``(n,)`` as int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor) -> Split:
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class Dataset:
    """A data set, its class names, and the transform between its pixels and a model's input space."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    transform: InputTransform
    flippable: bool = True
    """Whether a mirrored image keeps its label; digits do not."""

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    def holding_out(self, fraction: float = 0.1, seed: int = 0) -> Dataset:
        """The same data with a stratified part of the training data standing in for the test data.

        Settings are chosen on this; the test data is left for the end. The split depends on ``seed`` alone, so it is the same
        for everyone.
        """
        kept, held_out = stratified_split(self.train.labels, fraction, seed)
        return replace(self, train=self.train.subset(kept), test=self.train.subset(held_out))


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the two parts; each class gives ``fraction`` of its points, at least one, to the second."""
    if not 0 < fraction < 1:
        raise InputError(f"The held-out fraction must lie between 0 and 1; got {fraction}.")
    generator = generator_for(seed, "validation split")
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().squeeze(1)
        count = max(1, round(fraction * len(members)))
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)
