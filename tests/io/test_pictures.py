"""Pictures: every pixel where it belongs, at its true value, for every shape of data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from pseudocoresets._cli.show import show
from pseudocoresets._io.pictures import (
    BACKGROUND,
    GAP,
    MARGIN,
    MAXIMUM_NAME_WIDTH,
    Panel,
    fitting_scale,
    image_grid,
    save_class_rows,
    to_images,
)
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import load_dataset


def random_pixels(count: int, channels: int, height: int, width: int) -> Tensor:
    return torch.rand(count, channels, height, width, generator=generator_for(0, "picture test"))


def expected_levels(image: Tensor, scale: int) -> np.ndarray:
    """Enlarged by repetition, independently of the library: RGB bytes (height, width, 3)."""
    levels = np.round(np.clip(image.numpy(), 0, 1) * 255).astype(np.uint8)
    levels = np.broadcast_to(levels, (3, *levels.shape[1:])).transpose(1, 2, 0)
    return np.kron(levels, np.ones((scale, scale, 1), dtype=np.uint8))


def occurrences(picture: Image.Image, patch: np.ndarray) -> list[tuple[int, int]]:
    """Every (top, left) where ``patch`` stands in ``picture``."""
    whole = np.asarray(picture.convert("RGB"))
    height, width = patch.shape[:2]
    starts = np.argwhere((whole[: -height + 1 or None, : -width + 1 or None] == patch[0, 0]).all(-1))
    return [(y, x) for y, x in starts.tolist() if (whole[y : y + height, x : x + width] == patch).all()]


@settings(max_examples=15, deadline=None)
@given(
    channels=st.sampled_from([1, 3]),
    side=st.sampled_from([8, 28, 32, 64]),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
)
def test_every_image_stands_once_in_the_row_of_its_class(channels: int, side: int, counts: list[int]) -> None:
    labels = torch.tensor([label for label, count in enumerate(counts) for _ in range(count)])
    labels = labels[torch.randperm(len(labels), generator=generator_for(0, "order"))]
    pixels = random_pixels(len(labels), channels, side, side)
    picture = image_grid([Panel("", pixels, labels)], [f"class {label}" for label in range(len(counts))])
    scale = fitting_scale(pixels)
    tops: dict[int, set[int]] = {}
    for image, label in zip(pixels, labels.tolist(), strict=True):
        places = occurrences(picture, expected_levels(image, scale))
        assert len(places) == 1
        tops.setdefault(label, set()).add(places[0][0])
    rows = [tops[label] for label in sorted(tops)]
    assert all(len(row) == 1 for row in rows)
    distances = [next(iter(row)) - MARGIN for row in rows]
    assert distances == [label * (side * scale + GAP) for label in sorted(tops)]


def test_values_beyond_black_and_white_are_clipped() -> None:
    pixels = torch.tensor([-0.5, 0.0, 0.5, 1.0, 7.0]).reshape(1, 1, 1, 5)
    (image,) = to_images(pixels)
    assert np.asarray(image)[0, :, 0].tolist() == [0, 0, 128, 255, 255]


def test_scales_are_whole_and_at_least_one() -> None:
    assert [fitting_scale(torch.zeros(1, 1, side, side)) for side in (8, 28, 32, 64, 96)] == [8, 2, 2, 1, 1]


def test_panels_stand_side_by_side_in_the_same_rows() -> None:
    before, after = random_pixels(6, 1, 8, 8).split(3)
    labels = torch.arange(3)
    picture = image_grid([Panel("initial", before, labels), Panel("learned", after, labels)], ["a", "b", "c"], 2)
    for old, new in zip(before, after, strict=True):
        ((old_top, old_left),) = occurrences(picture, expected_levels(old, 2))
        ((new_top, new_left),) = occurrences(picture, expected_levels(new, 2))
        assert old_top == new_top and old_left + 16 < new_left


def test_names_differ_in_the_picture_and_long_ones_are_kept_short() -> None:
    pixels, labels = torch.zeros(2, 1, 8, 8), torch.arange(2)
    long = "a name that goes on and on " * 20
    picture = image_grid([Panel("", pixels, labels)], [long + "first", long + "second"])
    assert picture.width <= MAXIMUM_NAME_WIDTH + 3 * MARGIN + 64 + GAP + 2
    middle = MARGIN + 64 + GAP // 2
    upper, lower = (np.asarray(picture)[top : top + 64, :250] for top in (MARGIN, MARGIN + 64 + GAP))
    assert (upper != BACKGROUND).any() and (lower != BACKGROUND).any()
    assert (upper != lower).any()
    assert (np.asarray(picture)[middle, :250] == BACKGROUND).all()


def test_two_hundred_classes_and_fifty_images_a_class_fit(tmp_path: Path) -> None:
    labels = torch.cat([torch.arange(200), torch.zeros(49, dtype=torch.long)])
    save_class_rows(tmp_path / "many.png", torch.zeros(249, 3, 16, 16), labels, [f"n{i:08d}" for i in range(200)])
    with Image.open(tmp_path / "many.png") as picture:
        assert picture.height == 2 * MARGIN + 200 * (64 + GAP) - GAP
        assert picture.width > 50 * (64 + GAP)


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (torch.zeros(2, 0, 8, 8), torch.zeros(2, dtype=torch.long), "images, channels"),
        (torch.zeros(2, 8, 8), torch.zeros(2, dtype=torch.long), "images, channels"),
        (torch.zeros(2, 1, 8, 8), torch.zeros(3, dtype=torch.long), "one class number for each of its 2"),
        (torch.zeros(2, 1, 8, 8), torch.zeros(2), "one class number"),
        (torch.zeros(2, 1, 8, 8), torch.tensor([0, 2]), "numbers of its 2 classes"),
        (torch.full((2, 1, 8, 8), float("nan")), torch.zeros(2, dtype=torch.long), "not finite"),
    ],
)
def test_what_cannot_be_a_picture_is_refused(tmp_path: Path, pixels: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        save_class_rows(tmp_path / "no.png", pixels, labels, ["a", "b"])
    assert list(tmp_path.iterdir()) == []


def digits_coreset() -> Coreset:
    data = load_dataset("digits")
    chosen = torch.tensor([int((data.train.labels == label).nonzero()[0]) for label in range(10)])
    images, labels = data.transform(data.train.images[chosen]), data.train.labels[chosen]
    return Coreset(images, labels, torch.full((10,), 130.0), 1300, "digits", "random", data.transform, data.classes)


def test_the_command_shows_a_coreset_in_the_pixels_of_its_data(tmp_path: Path) -> None:
    data, coreset = load_dataset("digits"), digits_coreset()
    coreset.save(tmp_path / "c.safetensors")
    application = typer.Typer()
    application.command()(show)
    result = CliRunner().invoke(application, [str(tmp_path / "c.safetensors"), "--out", str(tmp_path / "c.png")])
    assert result.output == f"Wrote {tmp_path / 'c.png'}\n"
    first = data.train.images[int((data.train.labels == 0).nonzero()[0])]
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.format == "PNG"
        assert len(occurrences(picture, expected_levels(first / 255, 8))) == 1


def test_the_command_names_the_picture_after_the_file(tmp_path: Path) -> None:
    digits_coreset().save(tmp_path / "c.safetensors")
    application = typer.Typer()
    application.command()(show)
    result = CliRunner().invoke(application, [str(tmp_path / "c.safetensors"), "--json"])
    assert json.loads(result.output) == {"picture": str(tmp_path / "c.png"), "images": 10}
    assert (tmp_path / "c.png").is_file()


def test_a_bad_file_or_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_text("short")
    with pytest.raises(FileFormatError, match="not a complete safetensors file"):
        show(tmp_path / "bad.safetensors")
    digits_coreset().save(tmp_path / "c.safetensors")
    with pytest.raises(InputError, match=r"written as PNG.*'\.jpg'"):
        show(tmp_path / "c.safetensors", tmp_path / "c.jpg")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        show(tmp_path / "c.safetensors", tmp_path / "folder.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.safetensors", "c.safetensors", "folder.png"]


@pytest.mark.parametrize("channels", [2, 4, 13])
def test_of_many_channels_three_are_shown(channels: int) -> None:
    pixels = torch.rand(1, channels, 4, 5)
    (image,) = to_images(pixels)
    shown = pixels.mean(1, keepdim=True).expand(-1, 3, -1, -1) if channels == 2 else pixels[:, :3]
    expected = (shown[0] * 255).round().permute(1, 2, 0)
    assert torch.equal(torch.from_numpy(np.array(image)).float(), expected)
