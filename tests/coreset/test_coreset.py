"""The coreset file, and its use without knowing the library."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pseudocoresets as pc
from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.coreset import ARRAYS, FORMAT_VERSION
from pseudocoresets.data import Dataset, InputTransform, fit_zca
from pseudocoresets.evaluation import Summary


def test_the_file_opens_with_plain_safetensors(coreset: pc.Coreset, coreset_file: Path) -> None:
    tensors = load_file(coreset_file)
    assert tensors["images"].shape == (10, 1, 8, 8)
    assert tensors["images"].dtype == torch.float32
    assert tensors["labels"].dtype == torch.int64
    assert tensors["weights"].shape == (10,)
    assert torch.equal(tensors["images"], coreset.images)
    with safetensors.safe_open(coreset_file, framework="pt") as file:
        document = json.loads(file.metadata()["json"])
    assert document["version"] == FORMAT_VERSION
    assert document["dataset"] == "digits"
    assert document["method"] == "cd"
    assert document["configuration"]["settings"]["ipc"] == 1
    assert document["configuration"]["method"]["expert_epochs"] == 3
    assert document["seed"] == 0
    assert document["classes"] == [str(digit) for digit in range(10)]
    assert document["transform"] == "normalise"
    assert document["libraries"]["torch"] == torch.__version__


def test_weights_sum_to_the_size_of_the_full_data(coreset: pc.Coreset, digits: Dataset) -> None:
    assert float(coreset.weights.sum()) == pytest.approx(len(digits.train), rel=1e-6)


def assert_same(first: pc.Coreset, second: pc.Coreset) -> None:
    for name in ("images", "labels", "weights"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    for name in ("classes", "data_size", "source", "method", "seed", "network", "flippable"):
        assert getattr(first, name) == getattr(second, name)
    assert dict(first.configuration) == dict(second.configuration)
    own, other = first.transform.tensors(), second.transform.tensors()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize("variant", ["plain", "with C = 10", "whitened", "no network"])
def test_what_is_saved_comes_back(coreset: pc.Coreset, digits: Dataset, tmp_path: Path, variant: str) -> None:
    changes: dict[str, Any] = {
        "plain": {},
        "with C = 10": {"y": torch.randn(10, 10, generator=torch.Generator().manual_seed(0)).softmax(-1)},
        "whitened": {"transform": fit_zca(digits.train.images)},
        "no network": {"network": None},
    }[variant]
    saved = replace(coreset, **changes)
    saved.save(tmp_path / "c.safetensors")
    loaded = pc.Coreset.load(tmp_path / "c.safetensors")
    assert_same(saved, loaded)
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()


def test_the_dataset_is_an_ordinary_one(coreset: pc.Coreset) -> None:
    dataset = coreset.dataset()
    assert type(dataset) is TensorDataset
    image, label = dataset[3]
    assert torch.equal(image, coreset.images[3])
    assert int(label) == int(coreset.labels[3])


@given(seed=st.integers(0, 1000), whiten=st.booleans(), count=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_the_transform_takes_bytes_and_floats_and_leads_back(seed: int, whiten: bool, count: int) -> None:
    """Whitening, in float32 (1e-7), has a condition below 100 over 64 pixels: the way back errs by less than 1e-3."""
    data = pc.load_dataset("digits", whiten=whiten)
    pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    images = data.transform(pixels)
    assert images.dtype == torch.float32
    torch.testing.assert_close(data.transform(pixels.float() / 255), images)
    back = data.transform.to_pixels(images)
    torch.testing.assert_close(back, pixels.float() / 255, rtol=0, atol=1e-3 if whiten else 1e-5)


def test_pixels_of_real_images_are_those_of_the_data(digits: Dataset, coreset: pc.Coreset) -> None:
    real = replace(coreset, x=digits.transform(digits.train.images[:10]))
    torch.testing.assert_close(real.to_pixels(), digits.train.images[:10].float() / 255, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.zeros(2, 1, 8, 8, dtype=torch.int64), "uint8"),
        (torch.full((2, 1, 8, 8), 200.0), "0..1"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "channels"),
    ],
)
def test_pixels_that_cannot_be_meant_are_refused(coreset: pc.Coreset, images: torch.Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        coreset.transform(images)


class PlainClassifier(nn.Module):
    """Somebody's own network, written without this library."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(images.flatten(1))))


def plain_accuracy(path: Path, digits: Dataset, seed: int) -> float:
    """What a reader of the file does: an ordinary loop over an ordinary data set."""
    coreset = pc.Coreset.load(path)
    torch.manual_seed(seed)
    model = PlainClassifier()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(coreset.dataset(), batch_size=10, shuffle=True)
    for _ in range(150):
        for images, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()
    with torch.no_grad():
        predicted = model(coreset.transform(digits.test.images)).argmax(-1)
    return float((predicted == digits.test.labels).float().mean())


def test_an_ordinary_module_reaches_the_accuracy_of_the_point_protocol(coreset_file: Path, digits: Dataset) -> None:
    """Five ordinary trainings and five point runs differ by less than three deviations of a difference of means."""
    samples = pc.sample_posterior(
        pc.Coreset.load(coreset_file),
        start="point",
        chains=5,
        steps=150,
        samples=1,
        point_learning_rate=0.05,
        augment=False,
    )
    point = pc.evaluate(samples, digits.test).accuracy
    plain = Summary(tuple(plain_accuracy(coreset_file, digits, seed) for seed in range(5)))
    error = ((point.std**2 + plain.std**2) / 5) ** 0.5
    assert plain.mean == pytest.approx(point.mean, abs=3 * error)
    assert plain.mean > 0.6


# Files that are not coresets, or not whole ones.


def altered(path: Path, out: Path, tensors: dict[str, torch.Tensor] | None = None, **document: Any) -> Path:
    """A copy of a coreset file with some tensors and entries changed; an ellipsis removes one."""
    found, metadata = read_tensors(path)
    found |= tensors or {}
    metadata |= document
    write_tensors(out, found, {key: value for key, value in metadata.items() if value is not Ellipsis})
    return out


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, 0.99])
def test_a_truncated_file_is_refused(coreset_file: Path, tmp_path: Path, keep: float) -> None:
    whole = coreset_file.read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole[: int(keep * len(whole)) if keep < 1 else int(keep)])
    with pytest.raises(FileFormatError, match="not a complete safetensors file"):
        pc.Coreset.load(path)


def test_other_safetensors_are_refused(tmp_path: Path) -> None:
    save_file({"images": torch.zeros(1, 1, 8, 8)}, tmp_path / "other.safetensors")
    with pytest.raises(FileFormatError, match="not one that this library wrote"):
        pc.Coreset.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"version": max(ARRAYS) + 1}, f"format version {max(ARRAYS) + 1}"),
        ({"format": "something else"}, "not a coreset file"),
        ({"classes": ...}, "lacks 'classes'"),
        ({"classes": 3}, "'classes' is 3 where list of"),
        ({"network": {"name": "mlp"}}, "lacks 'shape'"),
        ({"network": {"name": "mlp", "shape": [1], "classes": 10, "options": {}}}, "list of 3"),
        ({"classes": ["a", "b"]}, "labels go from 0 to 9, and it has 2 classes"),
    ],
)
def test_a_wrong_document_is_refused(
    coreset_file: Path, tmp_path: Path, document: dict[str, Any], sentence: str
) -> None:
    path = altered(coreset_file, tmp_path / "c.safetensors", **document)
    with pytest.raises(FileFormatError, match=sentence):
        pc.Coreset.load(path)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"labels": torch.zeros(9, dtype=torch.int64)}, "'labels' is"),
        ({"weights": torch.ones(3)}, "'weights' is"),
        ({"images": torch.zeros(10, 64)}, "'images' is"),
        ({"images": torch.full((10, 1, 8, 8), float("nan"))}, "not finite"),
        ({"labels": torch.full((10, 10), float("inf"))}, "not finite"),
        ({"labels": torch.zeros(10, 7)}, "with C = 10"),
        ({"labels": torch.full((10,), -1)}, "labels go from -1 to -1"),
    ],
)
def test_wrong_tensors_are_refused(
    coreset_file: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], sentence: str
) -> None:
    path = altered(coreset_file, tmp_path / "c.safetensors", tensors)
    with pytest.raises(FileFormatError, match=sentence):
        pc.Coreset.load(path)


def test_a_transform_without_its_tensors_is_refused() -> None:
    with pytest.raises(FileFormatError, match="incomplete"):
        InputTransform.from_tensors({"mean": torch.zeros(1)})


def test_rows_of_a_table_survive_a_file(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, weights = (torch.rand(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 3), (5,), (5,)))
    rows = pc.Coreset(x, y, weights, 40, "table", "giga", indices=torch.tensor([3, 1, 7, 20, 39]))
    rows.save(tmp_path / "rows.safetensors")
    loaded = pc.Coreset.load(tmp_path / "rows.safetensors")
    for name in ("x", "y", "weights", "indices"):
        assert torch.equal(getattr(loaded, name), getattr(rows, name))
    assert (loaded.data_size, loaded.source, loaded.method, loaded.transform) == (40, "table", "giga", None)
    with pytest.raises(InputError, match="rows of a table"):
        loaded.images  # noqa: B018
    assert repr(loaded) == "Coreset(5 rows for 40 of 'table', by 'giga')"
