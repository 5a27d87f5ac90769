"""Data sets of the user's own tensors and arrays: checked, labelled 0, 1, ..., and split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.data.dataset import Dataset, DatasetOptions, Split, stratified_split
from pseudocoresets.data.transforms import LARGEST_LEVEL, WHITENING_CHUNK
from pseudocoresets.data.zca_cache import FitOnDemand

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchDataset

Arrays: TypeAlias = Tensor | np.ndarray | Sequence[Any]
"""Images or labels: a tensor, an array, or a sequence of them."""

LARGEST_LEVELS = 2**31


def dataset_from_arrays(
    train: tuple[Arrays, Arrays], test: tuple[Arrays, Arrays] | None, options: DatasetOptions
) -> Dataset:
    """A data set of (images, labels); a part of them is held out where no test data is given."""
    images, values = _images(train[0], options.levels), _label_values(train[1])
    _check_count(images, values, "training")
    classes, known = _classes(values, options.classes)
    labels = _numbered(values, known, "training")
    if test is None:
        kept, held_out = stratified_split(labels, options.test_fraction, options.seed)
        if not len(held_out):
            raise InputError("No class has two images, so no test data can be held out; give test=(images, labels).")
        whole = Split(images, labels)
        parts = whole.subset(kept), whole.subset(held_out)
    else:
        parts = Split(images, labels), _test_split(test, images, known, options.levels)
    transform = options.transform
    if transform is None:
        transform = FitOnDemand(options.whiten, span=_span(parts[0].images, options.levels))
    elif options.whiten:
        raise InputError("Give either whiten=True or a transform of your own, not both.")
    return Dataset(options.name, *parts, classes, transform, options.flippable)


def read_items(dataset: TorchDataset[Any]) -> tuple[Tensor, list[Any]]:
    """Images and labels of every item."""
    try:
        count = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        raise InputError("A data set must have a length and numbered items; gather what yours yields first.") from None
    if count == 0:
        raise InputError("The data set has no items.")
    images, labels = torch.empty(0), []
    for number in range(count):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(f"Item {number} of the data set is not a pair (image, label).")
        image = _one_image(item[0], number)
        if number == 0:
            images = torch.empty(count, *image.shape, dtype=image.dtype)
        if (image.shape, image.dtype) != (images.shape[1:], images.dtype):
            raise InputError(
                f"Images must be of one size and type: item {number} is {image.dtype} {tuple(image.shape)}, the first "
                f"is {images.dtype} {tuple(images.shape[1:])}."
            )
        images[number] = image
        labels.append(_one_label(item[1], number))
    return images, labels


def _one_image(value: Any, number: int) -> Tensor:
    if isinstance(value, Image.Image):
        array = np.asarray(value.convert("RGB") if value.mode == "P" else value)
        return _as_tensor(array if array.ndim == 2 else array.transpose(2, 0, 1))
    if not isinstance(value, Tensor | np.ndarray):
        raise InputError(
            f"Item {number} holds a {type(value).__name__} where an image should be: a tensor, an array or a PIL image."
        )
    return _as_tensor(value)


def _one_label(value: Any, number: int) -> Any:
    if not isinstance(value, Tensor | np.ndarray | np.generic):
        return value
    if np.prod(value.shape) != 1:
        raise InputError(f"Item {number} has a label of shape {tuple(value.shape)}; one whole number is needed.")
    return value.item()


def _as_tensor(values: Tensor | np.ndarray) -> Tensor:
    """On the CPU and in the machine's byte order; shares memory with what is given where it can."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    usable = native if native.flags.writeable and min(native.strides, default=0) >= 0 else native.copy()
    try:
        return torch.from_numpy(usable)
    except TypeError:
        raise InputError(f"Images must be numbers; got an array of {values.dtype}.") from None


def _images(values: Arrays, levels: int | None) -> Tensor:
    """(n, channels, height, width), in one of the types that transforms know."""
    images = _stacked(values)
    if images.dim() == 3:
        images = images[:, None]
    if images.dim() != 4 or not images.numel():
        raise InputError(
            f"Images must be (n, channels, height, width) or (n, height, width); got {tuple(images.shape)}."
        )
    if images.shape[3] in (1, 3) and images.shape[1] == images.shape[2]:
        raise InputError(
            f"Images {tuple(images.shape)} seem to have their channels last; they must come before height and width: "
            "images.permute(0, 3, 1, 2), or transpose(0, 3, 1, 2) in NumPy."
        )
    if images.dtype == torch.bool:
        images = images.to(torch.uint8) * 255
    if images.dtype == torch.int64:
        images = _narrowed(images)
    if images.is_floating_point():
        _check_finite(images, levels)
    else:
        _check_levels(images, levels)
    return images


def _stacked(values: Arrays) -> Tensor:
    if isinstance(values, Tensor | np.ndarray):
        return _as_tensor(values)
    parts = [_one_image(value, number) for number, value in enumerate(values)]
    if len({(part.shape, part.dtype) for part in parts}) != 1:
        raise InputError("Images must all be of one size and type, and there must be at least one.")
    return torch.stack(parts)


def _narrowed(images: Tensor) -> Tensor:
    low, high = images.aminmax()
    if low < 0 or high >= LARGEST_LEVELS:
        raise InputError(f"Whole-number images must lie between 0 and 2^31 - 1; got {low} to {high}.")
    return images.to(torch.int32)


def _check_finite(images: Tensor, levels: int | None) -> None:
    if levels is not None:
        raise InputError("Levels belong to whole-number images; floating-point images have none.")
    if not all(bool(torch.isfinite(part).all()) for part in images.split(WHITENING_CHUNK)):
        raise InputError("Images must be finite; some values are infinite or not a number.")


def _check_levels(images: Tensor, levels: int | None) -> None:
    if levels is None and images.dtype in LARGEST_LEVEL:
        return
    if images.is_complex():
        raise InputError(f"Images must be real numbers; got {images.dtype}.")
    if levels is None:
        raise InputError(
            f"Images of type {images.dtype} need levels=..., the number of values a pixel can have: 4096 for 12 bits."
        )
    if not 2 <= levels <= LARGEST_LEVELS:
        raise InputError(f"Levels must lie between 2 and 2^31; got {levels}.")
    low, high = _extremes(images)
    if low < 0 or high >= levels:
        raise InputError(f"With {levels} levels pixels lie between 0 and {levels - 1}; these go from {low} to {high}.")


def _extremes(images: Tensor) -> tuple[float, float]:
    parts = [part.to(torch.int64) if part.dtype == torch.uint16 else part for part in images.split(WHITENING_CHUNK)]
    pairs = [part.aminmax() for part in parts]
    return min(low.item() for low, _ in pairs), max(high.item() for _, high in pairs)


def _span(images: Tensor, levels: int | None) -> Tensor | None:
    """See ``InputTransform.span``."""
    if not images.is_floating_point():
        return None if levels is None else torch.tensor([0, levels - 1])
    low, high = _extremes(images)
    if low >= 0 and high <= 1:
        return torch.tensor([0.0, 1.0])
    return torch.tensor([low, high if high > low else low + 1], dtype=torch.float64)


def _label_values(labels: Arrays) -> np.ndarray:
    """(n,) whole numbers or texts."""
    try:
        values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except ValueError:
        raise InputError("Labels must be one whole number or text per image; these differ in shape.") from None
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "biuU":
        raise InputError(f"Labels must be one whole number or text per image; got {values.dtype} {values.shape}.")
    return values


def _check_count(images: Tensor, labels: np.ndarray, part: str) -> None:
    if len(images) != len(labels):
        raise InputError(f"The {part} data has {len(images)} images and {len(labels)} labels.")


def _classes(values: np.ndarray, names: Sequence[str] | None) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes, and the sorted label values that stand for them."""
    found = np.unique(values)
    if len(found) < 2:
        raise InputError(f"At least two classes are needed; all labels are {found[0]}.")
    if names is None:
        return tuple(str(value) for value in found), found
    if len(found) == len(names):
        return tuple(names), found
    if found.dtype.kind != "U" and found[0] >= 0 and found[-1] < len(names):
        missing = next(name for number, name in enumerate(names) if number not in found)
        raise InputError(f"The class '{missing}' has no training image; leave it out of classes, or add one.")
    raise InputError(f"There are {len(names)} names of classes, and the labels have {len(found)} values.")


def _numbered(values: np.ndarray, known: np.ndarray, part: str) -> Tensor:
    """The place of each value among the known ones."""
    unknown = np.setdiff1d(values, known)
    if len(unknown):
        raise InputError(f"The {part} data has the label {unknown[0]}, which no training image has.")
    return torch.from_numpy(np.searchsorted(known, values).astype(np.int64))


def _test_split(test: tuple[Arrays, Arrays], train: Tensor, known: np.ndarray, levels: int | None) -> Split:
    images, values = _images(test[0], levels), _label_values(test[1])
    _check_count(images, values, "test")
    if (images.shape[1:], images.dtype) != (train.shape[1:], train.dtype):
        raise InputError(
            f"Test images are {images.dtype} {tuple(images.shape[1:])}, training images {train.dtype} "
            f"{tuple(train.shape[1:])}; they must be alike."
        )
    return Split(images, _numbered(values, known, "test"))
