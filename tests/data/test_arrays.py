"""Data sets of the user's own tensors, arrays and torch data sets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data import Dataset, InputTransform, fit_normalisation, load_dataset
from pseudocoresets.data.restoring import MissingWhitening, with_origin, without_matrices
from pseudocoresets.methods.selection import random_per_class

SINGLE = float(torch.finfo(torch.float32).eps)
LABELS = torch.arange(30) % 3
PIXELS = torch.rand(30, 2, 5, 4, generator=generator_for(0, "pixels"), dtype=torch.float64)


def from_pixels(images: Any, **options: Any) -> Dataset:
    return Dataset.from_tensors(images, LABELS, (images, LABELS), **options)


RAW: dict[str, tuple[Any, dict[str, Any], float]] = {
    "uint8": ((PIXELS * 255).round().to(torch.uint8), {}, 255),
    "uint8 of 16 levels": ((PIXELS * 15).round().to(torch.uint8), {"levels": 16}, 15),
    "uint16": ((PIXELS * 65535).round().to(torch.int32).to(torch.uint16), {}, 65535),
    "12 bits in uint16": ((PIXELS * 4095).round().to(torch.int32).to(torch.uint16), {"levels": 4096}, 4095),
    "12 bits, NumPy": ((PIXELS * 4095).round().numpy().astype(np.uint16), {"levels": 4096}, 4095),
    "12 bits, other byte order": ((PIXELS * 4095).round().numpy().astype(">u2"), {"levels": 4096}, 4095),
    "20 bits in int32": ((PIXELS * 2**20).int(), {"levels": 2**20 + 1}, 2**20),
    "20 bits in int64": ((PIXELS * 2**20).long(), {"levels": 2**20 + 1}, 2**20),
    "fractions": (PIXELS.float(), {}, 1),
    "fractions, NumPy": (PIXELS.numpy(), {}, 1),
}


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("whiten", [False, True])
def test_every_type_of_image_is_normalised_and_comes_back_as_pixels(name: str, whiten: bool) -> None:
    images, options, largest = RAW[name]
    data = from_pixels(images, whiten=whiten, **options)
    pixels = torch.from_numpy(np.asarray(images).astype(np.float64)) / largest
    inputs = data.transform(data.train.images)
    assert inputs.dtype == torch.float32
    if not whiten:
        spread = pixels.std((0, 2, 3), correction=0, keepdim=True)
        expected = (pixels - pixels.mean((0, 2, 3), keepdim=True)) / spread
        torch.testing.assert_close(inputs.double(), expected, rtol=0, atol=8 * SINGLE / float(spread.min()))
    # The inverse whitening amplifies the rounding of inputs of size ~10 by its norm, at most ~3 here.
    torch.testing.assert_close(data.transform.to_pixels(inputs).double(), pixels, rtol=0, atol=200 * SINGLE)


def test_raw_images_are_neither_copied_nor_converted() -> None:
    for name in ("uint8", "uint16", "20 bits in int32", "fractions"):
        images = RAW[name][0]
        data = from_pixels(images, **RAW[name][1])
        assert data.train.images.dtype == images.dtype
        assert data.train.images.data_ptr() == images.data_ptr()


def test_bytes_are_treated_as_ever() -> None:
    """Coreset files and fingerprints of whitening rest on these bits."""
    images = RAW["uint8"][0]
    data = from_pixels(images)
    assert data.transform.span is None and set(data.transform.tensors()) == {"mean", "std"}
    expected = (images.float() / 255 - data.transform.mean[:, None, None]) / data.transform.std[:, None, None]
    assert torch.equal(data.transform(images), expected)
    digits = load_dataset("digits", whiten=True)
    assert digits.transform.origin is not None
    assert digits.transform.origin.fingerprint == "cbb7d98684f6d0e7760f21cdebc74836"


@given(low=st.floats(-1e4, 1e4), width=st.floats(0.5, 1e4))
@settings(max_examples=30, deadline=None)
def test_other_floating_point_values_are_shown_between_their_extremes(low: float, width: float) -> None:
    images = low + width * PIXELS
    data = from_pixels(images)
    inputs = data.transform(images).double()
    if images.min() < 0 or images.max() > 1:
        pixels = data.transform.to_pixels(inputs.float())
        assert pixels.min() == pytest.approx(0, abs=8 * SINGLE) and pixels.max() == pytest.approx(1, abs=8 * SINGLE)
    bound = 8 * SINGLE / float(PIXELS.std((0, 2, 3)).min())
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(2, dtype=torch.float64), rtol=0, atol=bound)
    spread = inputs.std((0, 2, 3), correction=0)
    torch.testing.assert_close(spread, torch.ones(2, dtype=torch.float64), rtol=0, atol=bound)


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_any_number_of_channels(channels: int) -> None:
    images = torch.randint(0, 256, (30, channels, 6, 6), dtype=torch.uint8)
    assert from_pixels(images).shape == (channels, 6, 6)
    assert from_pixels(images, whiten=True).transform(images).shape == images.shape


def test_one_channel_may_be_left_out() -> None:
    data = from_pixels(PIXELS[:, 0])
    assert data.shape == (1, 5, 4)
    assert torch.equal(data.train.images[:, 0], PIXELS[:, 0])


@pytest.mark.parametrize("labels", [[7, -2, 7, 5] * 5, ["dog", "ant", "dog", "cat"] * 5])
def test_labels_are_numbered_and_keep_their_values_as_names(labels: list[Any]) -> None:
    images = torch.rand(20, 1, 4, 4)
    data = Dataset.from_tensors(images, labels, (images, labels))
    assert data.classes == tuple(str(value) for value in sorted(set(labels)))
    assert data.train.labels.dtype == torch.int64
    assert [data.classes[label] for label in data.test.labels.tolist()] == [str(value) for value in labels]
    named = Dataset.from_tensors(images, labels, classes=["a", "b", "c"])
    assert named.classes == ("a", "b", "c")


def test_a_stratified_fifth_is_test_data_where_none_is_given() -> None:
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
    data = Dataset.from_tensors(torch.rand(63, 1, 4, 4), labels)
    assert data.train.labels.bincount().tolist() == [40, 8, 1, 1]
    assert data.test.labels.bincount(minlength=4).tolist() == [10, 2, 1, 0]
    again = Dataset.from_tensors(data.train.images, data.train.labels, test_fraction=0.5, seed=1)
    assert again.test.labels.bincount().tolist()[:2] == [20, 4]


def test_small_classes_give_all_they_have() -> None:
    labels = torch.tensor([0] * 6 + [1] * 2 + [2] * 4)
    data = Dataset.from_tensors(torch.rand(12, 1, 4, 4), labels, (torch.rand(12, 1, 4, 4), labels))
    with pytest.warns(UserWarning, match="1 of 3 classes have fewer than 3 images, the smallest 2"):
        chosen = random_per_class(data.train, 3, seed=0)
    assert labels[chosen].bincount().tolist() == [3, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(random_per_class(data.train, 2, seed=0)) == 6
    with pytest.raises(InputError, match="at least 1; got 0"):
        random_per_class(data.train, 0, seed=0)


class Pictures:
    """A map-style data set without a base class."""

    def __init__(self, images: list[Any], labels: list[Any]) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index >= len(self):
            raise IndexError
        return self.images[index], self.labels[index]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "I;16", "F", "array", "tensor", "grey"])
def test_a_torch_data_set_is_read_whole(mode: str) -> None:
    grid = np.arange(30).reshape(5, 6)
    levels = [grid + number for number in range(12)]
    make = {
        "L": lambda grid: Image.fromarray(grid.astype(np.uint8)),
        "I;16": lambda grid: Image.fromarray((grid * 1000).astype(np.uint16)),
        "F": lambda grid: Image.fromarray(grid.astype(np.float32)),
        "array": lambda grid: grid.astype(np.uint8)[None],
        "tensor": lambda grid: torch.from_numpy(grid.astype(np.uint8))[None],
        "grey": lambda grid: grid.astype(np.uint8),
    }
    convert = make.get(mode, lambda grid: make["L"](grid).convert(mode))
    labels = [3, np.int64(4), torch.tensor(3), np.array(4)] * 3
    whole = Pictures([convert(grid) for grid in levels], labels)
    data = Dataset.from_torch(whole, whole, name="mine")  # type: ignore[arg-type]
    channels = {"RGB": 3, "RGBA": 4, "P": 3}.get(mode, 1)
    assert (data.name, data.shape, data.classes) == ("mine", (channels, 5, 6), ("3", "4"))
    scale = 1000 if mode == "I;16" else 1
    assert data.train.images[:, 0].long().tolist() == [(grid * scale).tolist() for grid in levels]
    assert data.train.labels.tolist() == [0, 1] * 6


def test_a_torch_data_set_and_its_tensors_are_the_same_data() -> None:
    images = torch.rand(30, 3, 8, 8)
    data = Dataset.from_torch(TensorDataset(images, LABELS), seed=3)
    same = Dataset.from_tensors(images, LABELS, seed=3)
    assert data.fingerprint == same.fingerprint
    assert torch.equal(data.test.images, same.test.images)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(1, 4, 4), 0


IMAGE = torch.zeros(1, 4, 4)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "must have a length"),
        (Pictures([], []), "no items"),
        (Pictures([IMAGE, torch.zeros(1, 4, 5)], [0, 1]), r"item 1 is torch.float32 \(1, 4, 5\)"),
        (Pictures([IMAGE, IMAGE.byte()], [0, 1]), "item 1 is torch.uint8"),
        (Pictures([IMAGE, "cat.png"], [0, 1]), "Item 1 holds a str"),
        (Pictures([IMAGE, IMAGE], [0, torch.tensor([0, 1])]), r"Item 1 has a label of shape \(2,\)"),
        (Pictures([IMAGE, IMAGE], [0, 0.5]), "one whole number"),
        ([(IMAGE, 0, 1)], "not a pair"),
    ],
)
def test_torch_data_sets_that_cannot_be_used_are_refused(dataset: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Dataset.from_torch(dataset)


FOUR = torch.rand(4, 1, 4, 4)


@pytest.mark.parametrize(
    ("images", "labels", "options", "message"),
    [
        (FOUR[:0], [], {}, r"got \(0, 1, 4, 4\)"),
        (FOUR[0, 0], [0, 1], {}, r"got \(4, 4\)"),
        (torch.zeros(4, 8, 8, 3), [0, 1, 0, 1], {}, "channels last"),
        (FOUR, [0, 1, 0], {}, "4 images and 3 labels"),
        (FOUR, [0.0, 1.0, 0.0, 1.0], {}, "one whole number"),
        (FOUR, torch.eye(4), {}, "one whole number"),
        (FOUR, [0, [1], 0, 1], {}, "differ in shape"),
        (FOUR, [1, 1, 1, 1], {}, "two classes"),
        (FOUR, [0, 1, 2, 3], {}, "no test data can be held out"),
        (FOUR, [0, 1, 0, 1], {"classes": ["a", "b", "c"]}, "'c' has no training image"),
        (FOUR, [5, 9, 5, 9], {"classes": ["a", "b", "c"]}, "3 names of classes, and the labels have 2"),
        (FOUR, [0, 1, 0, 1], {"levels": 256}, "have none"),
        (FOUR, [0, 1, 0, 1], {"whiten": True, "transform": fit_normalisation}, "not both"),
        (FOUR, [0, 1, 0, 1], {"test_fraction": 1.5}, "between 0 and 1"),
        (FOUR / 0, [0, 1, 0, 1], {}, "finite"),
        (FOUR.int(), [0, 1, 0, 1], {}, "need levels"),
        (FOUR.int() - 1, [0, 1, 0, 1], {"levels": 16}, "from -1 to -1"),
        (FOUR.byte() + 16, [0, 1, 0, 1], {"levels": 16}, "between 0 and 15"),
        (FOUR.byte(), [0, 1, 0, 1], {"levels": 1}, "between 2 and"),
        (FOUR.long() - 1, [0, 1, 0, 1], {"levels": 16}, "between 0 and 2"),
        (FOUR.to(torch.complex64), [0, 1, 0, 1], {}, "real"),
        (np.array([["a"]]), [0], {}, "must be numbers"),
        ([FOUR[0], FOUR[0, :, :2]], [0, 1], {}, "one size"),
        (FOUR, [0, 1, 0, 1], {"test": (FOUR[:, :, :2], [0, 1, 0, 1])}, "must be alike"),
        (FOUR, [0, 1, 0, 1], {"test": (FOUR.byte(), [0, 1, 0, 1])}, "must be alike"),
        (FOUR, [0, 1, 0, 1], {"test": (FOUR, [0, 1, 0, 2])}, "the label 2, which no training image has"),
        (FOUR, [0, 1, 0, 1], {"test": (FOUR, [0, 1])}, "test data has 4 images and 2 labels"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(
    images: Any, labels: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Dataset.from_tensors(images, labels, **options)


def test_a_transform_of_ones_own_is_used() -> None:
    fits: list[Tensor] = []
    data = from_pixels(PIXELS, transform=lambda images: fits.append(images) or fit_normalisation(images))
    assert data.transform.kind == "normalise" and len(fits) == 1
    assert from_pixels(PIXELS, transform=data.transform).transform is data.transform


@pytest.mark.parametrize("name", ["12 bits in uint16", "fractions", "uint8"])
def test_whitening_of_every_type_can_be_stored_and_fitted_again(name: str, tmp_path: Path) -> None:
    images, options, _ = RAW[name]
    data = from_pixels(images, whiten=True, **options)
    write_tensors(tmp_path / "t.safetensors", data.transform.tensors(), {})
    stored = InputTransform.from_tensors(read_tensors(tmp_path / "t.safetensors")[0])
    assert torch.equal(stored(images), data.transform(images))
    compact = without_matrices(data.transform, data.name)
    assert isinstance(compact, MissingWhitening)
    torch.testing.assert_close(compact.fitted_again(data)(images), data.transform(images))
    found = with_origin(stored, data)
    assert found.origin == data.transform.origin
