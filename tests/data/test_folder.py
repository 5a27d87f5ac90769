"""Folders of the user's own images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.data import load_dataset, load_folder


def write_images(
    folder: Path, counts: dict[str, int], size: tuple[int, int] = (6, 5), mode: str = "RGB", suffix: str = "png"
) -> None:
    """Images whose level is 10 times the index of their class, plus their number."""
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            level = 10 * label + index
            Image.new(mode, size, level if mode == "L" else (level,) * len(mode)).save(
                folder / name / f"{index}.{suffix}"
            )


def test_one_folder_a_class_is_split_the_same_way_for_everyone(tmp_path: Path) -> None:
    write_images(tmp_path, {"ant": 5, "bee": 10})
    dataset = load_dataset(f"folder:{tmp_path}", "unused")
    assert dataset.classes == ("ant", "bee")
    assert dataset.shape == (3, 5, 6)
    assert dataset.train.labels.bincount().tolist() == [4, 8]
    assert dataset.test.labels.bincount().tolist() == [1, 2]
    both = torch.cat([dataset.train.images, dataset.test.images])[:, 0, 0, 0]
    assert sorted(both.tolist()) == [*range(5), *range(10, 20)]
    assert torch.equal(both // 10, torch.cat([dataset.train.labels, dataset.test.labels]))
    again = load_folder(tmp_path)
    assert torch.equal(again.test.images, dataset.test.images)
    assert dataset.transform.kind == "normalise"


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"ant": 3, "bee": 2}, mode="L")
    write_images(tmp_path / "test", {"ant": 1, "bee": 1}, mode="L")
    dataset = load_folder(tmp_path)
    assert dataset.shape == (1, 5, 6)
    assert (dataset.train.labels.tolist(), dataset.test.labels.tolist()) == ([0, 0, 0, 1, 1], [0, 1])
    assert dataset.train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11]


@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "tiff", "webp", "ppm"])
def test_formats_that_pillow_reads(tmp_path: Path, suffix: str) -> None:
    write_images(tmp_path, {"a": 2, "b": 2}, suffix=suffix)
    assert load_folder(tmp_path).shape == (3, 5, 6)


def test_images_are_scaled_on_request_from_their_centre(tmp_path: Path) -> None:
    write_images(tmp_path, {"a": 2, "b": 2}, size=(8, 4))
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 2:6] = 200  # only the middle square
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
    Image.new("L", (30, 30), 7).save(tmp_path / "b" / "1.png")
    for dataset in (load_dataset(f"folder:{tmp_path}?size=4"), load_dataset(f"folder:{tmp_path}", size=4)):
        assert dataset.shape == (3, 4, 4)
        images = torch.cat([dataset.train.images, dataset.test.images])
        assert sorted(images.float().mean((1, 2, 3)).tolist()) == [1, 7, 10, 200]
    assert load_dataset(f"folder:{tmp_path}?size=4").name == f"folder:{tmp_path}?size=4"


def test_images_with_alpha_or_a_palette_become_colour(tmp_path: Path) -> None:
    write_images(tmp_path, {"a": 2, "b": 2}, mode="L")
    Image.new("RGBA", (6, 5), (1, 2, 3, 255)).save(tmp_path / "b" / "1.png")
    Image.new("P", (6, 5), 0).save(tmp_path / "b" / "2.png")
    assert load_folder(tmp_path).shape == (3, 5, 6)


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    write_images(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "readme.md").write_text("nor this")
    (tmp_path / ".cache").mkdir()
    assert len(load_folder(tmp_path).train) == 2


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    write_images(tmp_path, {"a": 2, "b": 2}, size=(6, 5), suffix="png")
    turned = Image.new("RGB", (5, 6))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "b" / "0.png", exif=exif)
    assert load_folder(tmp_path).shape == (3, 5, 6)


def test_wrong_folders_are_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match="it holds none"):
        load_folder(tmp_path)
    write_images(tmp_path, {"a": 2})
    with pytest.raises(FileFormatError, match="only 'a'"):
        load_folder(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(FileFormatError, match=r"'.*b' holds 0 images"):
        load_folder(tmp_path)


def test_unreadable_and_unequal_images_are_named(tmp_path: Path) -> None:
    write_images(tmp_path, {"a": 2, "b": 2})
    whole = (tmp_path / "a" / "0.png").read_bytes()
    (tmp_path / "a" / "0.png").write_bytes(b"not an image")
    with pytest.raises(FileFormatError, match=r"0\.png' is not a readable image"):
        load_folder(tmp_path)
    (tmp_path / "a" / "0.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"0\.png' is not a readable image"):
        load_folder(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "a" / "0.png")
    with pytest.raises(FileFormatError, match=r"size=32"):
        load_folder(tmp_path)
    Image.new("I;16", (6, 5)).save(tmp_path / "a" / "0.png")
    with pytest.raises(FileFormatError, match="more than 8 bits"):
        load_folder(tmp_path)


def test_a_test_class_without_training_images_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"a": 2, "b": 2})
    write_images(tmp_path / "test", {"a": 1, "b": 1, "c": 1})
    with pytest.raises(FileFormatError, match="the class 'c'"):
        load_folder(tmp_path)


@pytest.mark.parametrize("query", ["?size=", "?size=0", "?size=x", "?size=-3"])
def test_wrong_sizes_are_explained(tmp_path: Path, query: str) -> None:
    with pytest.raises(InputError, match="whole number"):
        load_dataset(f"folder:{tmp_path}{query}")
    with pytest.raises(InputError, match="give one of them"):
        load_dataset(f"folder:{tmp_path}?size=3", size=4)


def test_the_path_is_recorded_whole_and_the_home_folder_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "bees", {"a": 2, "b": 2})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "bees")
    for name in ("folder:~/bees", "folder:.", "folder:../bees"):
        assert load_dataset(name).name == f"folder:{tmp_path / 'bees'}"


def test_what_is_no_file_is_passed_over_and_sizes_are_bounded(tmp_path: Path) -> None:
    write_images(tmp_path, {"a": 2, "b": 2})
    os.mkfifo(tmp_path / "a" / "pipe.png")
    assert len(load_folder(tmp_path).train) == 2
    with pytest.raises(InputError, match="between 1 and 4096"):
        load_dataset(f"folder:{tmp_path}?size=100000")
