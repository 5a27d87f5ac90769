"""What comes in: labelled images as bytes, split into training and test data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, overload

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.transforms import InputTransform

TransformFit: TypeAlias = Callable[[Tensor], InputTransform]
"""A function that fits a transform to uint8 training images."""


@dataclass(frozen=True)
class Split:
    """Images ``(n, channels, height, width)`` as uint8 and their labels ``(n,)`` as int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor) -> Split:
        return Split(self.images[indices], self.labels[indices])


class _TransformField:
    """An attribute that is given a transform, or a function that fits one, and reads as a transform.

    The function is called on the training images at the first reading: whitening takes a while to fit, and not
    every use of a data set needs it.
    """

    @overload
    def __get__(self, dataset: None, owner: type[Dataset]) -> _TransformField: ...

    @overload
    def __get__(self, dataset: Dataset, owner: type[Dataset]) -> InputTransform: ...

    def __get__(self, dataset: Dataset | None, owner: type[Dataset]) -> InputTransform | _TransformField:
        if dataset is None:
            raise AttributeError("transform")  # tells @dataclass that this field has no default
        fitted: InputTransform | None = dataset.__dict__.get("_fitted")
        if fitted is None:
            source = dataset.transform_source
            fitted = source if isinstance(source, InputTransform) else dataset.fitted_by(source)
            dataset.__dict__["_fitted"] = fitted
        return fitted

    def __set__(self, dataset: Dataset, source: InputTransform | TransformFit) -> None:
        dataset.__dict__["_transform_source"] = source


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A data set, its class names, and the transform between its pixels and a model's input space.

    ``transform`` may be given as a function of the training images; it is then fitted when it is first read.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    transform: _TransformField = _TransformField()
    flippable: bool = True
    """Whether a mirrored image keeps its label; digits do not."""
    held_out: tuple[tuple[float, int], ...] = ()
    """Fraction and seed of each ``holding_out`` that led here."""

    @property
    def fingerprint(self) -> str:
        from pseudocoresets.core.fingerprint import fingerprint

        return fingerprint(self.train.images, self.train.labels, self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @property
    def transform_source(self) -> InputTransform | TransformFit:
        """What ``transform`` was given as: the transform itself, or the function that fits it."""
        source: InputTransform | TransformFit = self.__dict__["_transform_source"]
        return source

    def fitted_by(self, fit: TransformFit) -> InputTransform:
        """What ``fit`` makes of the training images; whitening is told which part of the data these are."""
        fitted = fit(self.train.images)
        if not self.held_out or fitted.origin is None:
            return fitted
        return replace(fitted, origin=replace(fitted.origin, held_out=self.held_out))

    def holding_out(self, fraction: float = 0.1, seed: int = 0) -> Dataset:
        """The same data with a stratified part of the training data standing in for the test data.

        Settings are chosen on this; the test data is left for the end. The split depends on ``seed`` alone, so it is
        the same for everyone. A transform that is fitted on demand is fitted to the part that is kept.
        """
        kept, held_out = stratified_split(self.train.labels, fraction, seed)
        return replace(
            self,
            train=self.train.subset(kept),
            test=self.train.subset(held_out),
            transform=self.transform_source,
            held_out=(*self.held_out, (fraction, seed)),
        )

    def __repr__(self) -> str:
        shape = " x ".join(str(side) for side in self.shape)
        return (
            f"Dataset('{self.name}', {shape}, {len(self.classes)} classes, "
            f"{len(self.train)} training and {len(self.test)} test images)"
        )


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the two parts, ascending.

    Each class gives ``fraction`` of its points to the second part: at least one, and never its last.
    """
    if not 0 < fraction < 1:
        raise InputError(f"The held-out fraction must lie between 0 and 1; got {fraction}.")
    generator = generator_for(seed, "validation split")
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels).tolist():
        members = (labels == label).nonzero().squeeze(1)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)
