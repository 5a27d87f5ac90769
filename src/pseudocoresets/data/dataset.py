"""What comes in: labelled images as they are, split into training and test data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.transforms import InputTransform, fit_normalisation, public_normalisation
from pseudocoresets.data.zca_cache import FitOnDemand
from pseudocoresets.dp.guarantee import Guarantee

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchDataset

    from pseudocoresets.data.arrays import Arrays

TEST_FRACTION = 0.2

TransformFit: TypeAlias = Callable[[Tensor], InputTransform]
"""A function that fits a transform to raw training images."""


@dataclass(frozen=True)
class Split:
    """Raw images ``(n, channels, height, width)``, whatever their type, and their labels ``(n,)`` as int64."""

    images: Tensor
    labels: Tensor
    dataset: Dataset | None = field(default=None, compare=False, repr=False)
    """The data set that this is a part of."""

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor) -> Split:
        return Split(self.images[indices], self.labels[indices], self.dataset)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the images, their type and shape, and the labels."""
        return fingerprint(self.images, self.labels)


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
    guarantee: Guarantee | None = None
    """Of differential privacy, where these are synthetic data that were made with one."""
    made_by: Mapping[str, Any] | None = None
    """How they were made, where these are the images of a coreset; what is made from them records it."""

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            object.__setattr__(self, part, replace(self.__dict__[part], dataset=self))

    @classmethod
    def from_tensors(
        cls,
        images: Arrays,
        labels: Arrays,
        test: tuple[Arrays, Arrays] | None = None,
        *,
        name: str = "tensors",
        classes: Sequence[str] | None = None,
        levels: int | None = None,
        whiten: bool = False,
        transform: InputTransform | TransformFit | None = None,
        flippable: bool = True,
        test_fraction: float = TEST_FRACTION,
        seed: int = 0,
    ) -> Dataset:
        """Your own images, as tensors or NumPy arrays.

        Args:
            images: (n, channels, height, width) or (n, height, width), with any number of channels. uint8, uint16,
                other whole numbers with ``levels``, or any floating-point values; they are kept as they are.
            labels: One per image, whole numbers or texts. Their sorted distinct values are the classes.
            test: The same for the test data. Without it a stratified part of the data is held out as test data;
                every class keeps at least one training image, and a class of one image stays in training.
            name: What the data is called in files and reports.
            classes: Names of the classes in the order of their values; those values unless given.
            levels: Number of values that a pixel can have, 4096 for twelve bits; 256 in uint8 and 65,536 in uint16
                unless given. Floating-point values from 0 to 1 are pixels; others are shown between their extremes.
            whiten: Whether inputs are ZCA-whitened, rather than only normalised by mean and deviation per channel.
            transform: Another transform, or a function of the raw training images that fits one.
            flippable: Whether a mirrored image keeps its label.
            test_fraction: The part of each class that is held out where ``test`` is not given.
            seed: Of that choice.
        """
        from pseudocoresets.data.arrays import dataset_from_arrays

        options = DatasetOptions(name, classes, levels, whiten, transform, flippable, test_fraction, seed)
        return dataset_from_arrays((images, labels), test, options)

    @classmethod
    def from_torch(
        cls,
        dataset: TorchDataset[Any],
        test: TorchDataset[Any] | None = None,
        *,
        name: str = "torch",
        classes: Sequence[str] | None = None,
        levels: int | None = None,
        whiten: bool = False,
        transform: InputTransform | TransformFit | None = None,
        flippable: bool = True,
        test_fraction: float = TEST_FRACTION,
        seed: int = 0,
    ) -> Dataset:
        """Any map-style ``torch.utils.data.Dataset`` of (image, label): every item is read once.

        Images are tensors or NumPy arrays, (channels, height, width) or (height, width), or PIL images, all of one
        size and type; what the data set draws at random is drawn once. The rest is as in ``from_tensors``.
        """
        from pseudocoresets.data.arrays import dataset_from_arrays, read_items

        options = DatasetOptions(name, classes, levels, whiten, transform, flippable, test_fraction, seed)
        return dataset_from_arrays(read_items(dataset), None if test is None else read_items(test), options)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the training data, the classes and the transform, whatever the data is called.

        A transform that is fitted to the training data counts by its kind, because they determine it.
        """
        source = self.transform_source
        known = source if isinstance(source, FitOnDemand) else self.transform
        content = [self.train.fingerprint, self.classes, known.kind, known.span]
        if isinstance(known, InputTransform):
            fitted = fit_normalisation(self.train.images, known.span)
            given, own = ((each.mean.cpu(), each.std.cpu()) for each in (known, fitted))
            if not all(map(torch.allclose, given, own)):
                content += given
        return fingerprint(*content)

    @property
    def public_fingerprint(self) -> str:
        """A hash of what may be known of private data: name, number, shape, classes and public constants."""
        constants = list(self.transform.tensors().values())
        return fingerprint("private", self.name, len(self.train), self.shape, self.classes, *constants)

    def publicly_normalised(self) -> Dataset:
        """The same data with a transform that owes nothing to them, as private construction needs."""
        source = self.transform_source
        span = source.span if isinstance(source, InputTransform | FitOnDemand) else None
        return replace(self, transform=public_normalisation(self.shape[0], span))

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


def require_public(data: Dataset) -> None:
    """Refuse private data whose inputs depend on what was fitted to them, and images that were made from others."""
    source = data.transform_source
    if data.guarantee is None and data.made_by is not None:
        raise InputError(
            "These are the images of a coreset that was made without differential privacy; a budget would protect "
            "them, and not the data that they were made from."
        )
    if data.guarantee is None and not (isinstance(source, InputTransform) and source.public):
        raise InputError(
            f"The normalisation or whitening of '{data.name}' was fitted to the private data, which would break the "
            "guarantee; use data.publicly_normalised()."
        )


@dataclass(frozen=True)
class DatasetOptions:
    """What ``Dataset.from_tensors`` and ``from_torch`` have in common."""

    name: str
    classes: Sequence[str] | None
    levels: int | None
    whiten: bool
    transform: InputTransform | TransformFit | None
    flippable: bool
    test_fraction: float
    seed: int


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
