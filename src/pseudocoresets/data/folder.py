"""Images of the user's own: one folder per class."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from pseudocoresets.core.errors import FileFormatError, InputError, PassedOverWarning
from pseudocoresets.core.progress import Progress, Silent
from pseudocoresets.data.dataset import TEST_FRACTION, Dataset, Split, stratified_split
from pseudocoresets.data.images import decode_images, image_header
from pseudocoresets.data.zca_cache import FitOnDemand

LARGEST_SIDE = 4096


def load_folder(
    path: str | os.PathLike[str],
    size: int | None = None,
    whiten: bool = False,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """The images below ``path``, one folder per class.

    Either ``train/CLASS/*`` and ``test/CLASS/*``, or ``CLASS/*``, of which a seeded, stratified fifth is test data.
    ``size`` scales every image to a square of that side; without it all must have one size. Colour images anywhere
    make all of them colour images.
    """
    folder = resolved_folder(path)
    if size is not None and not 1 <= size <= LARGEST_SIDE:
        raise InputError(f"The size of images must lie between 1 and {LARGEST_SIDE}; got {size}.")
    if not folder.is_dir():
        raise InputError(f"There is no folder '{folder}'.")
    is_split = (folder / "train").is_dir() and (folder / "test").is_dir()
    parts = [folder / "train", folder / "test"] if is_split else [folder]
    classes = _class_names(parts[0])
    listed = [_list_images(part, classes) for part in parts]
    if not is_split:
        labels = torch.tensor([label for _, label in listed[0]])
        listed = [[listed[0][i] for i in part.tolist()] for part in stratified_split(labels, TEST_FRACTION, seed=0)]
    splits = _decode(listed, size, progress or Silent(), folder.name)
    suffix = "" if size is None else f"?size={size}"
    return Dataset(f"folder:{folder}{suffix}", splits[0], splits[1], classes, FitOnDemand(whiten, device))


def resolved_folder(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser().resolve()
    except (RuntimeError, OSError, ValueError) as error:  # a loop of links, no home, a zero in the name
        raise InputError(f"There is no folder {str(path)[:200]!r} ({error}).") from None


def _class_names(folder: Path) -> tuple[str, ...]:
    names = _folders(folder)
    if len(names) < 2:
        found = "none" if not names else f"only '{names[0]}'"
        raise FileFormatError(
            f"'{folder}' must hold one folder of images for each of at least two classes; it holds {found}."
        )
    return names


def _folders(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(inner.name for inner in folder.iterdir() if inner.is_dir() and inner.name[0] != "."))


def _list_images(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Every image below ``folder`` with the index of its class."""
    unknown = sorted(set(_folders(folder)) - set(classes))
    if unknown:
        raise FileFormatError(f"'{folder}' holds the class '{unknown[0]}', which the training folder has not.")
    images = []
    for label, name in enumerate(classes):
        found = _images_of(folder / name)
        least = 1 if folder.name in ("train", "test") else 2
        if len(found) < least:
            raise FileFormatError(
                f"The folder '{folder / name}' holds {len(found)} images; each class needs at least {least}."
            )
        images += [(path, label) for path in found]
    return images


def _images_of(folder: Path) -> list[Path]:
    """The files with an extension that Pillow knows; others, such as notes, are passed over."""
    from PIL import Image

    known = Image.registered_extensions()
    if not folder.is_dir():
        return []
    images = [path for path in folder.iterdir() if path.suffix.lower() in known and path.name[0] != "."]
    files = sorted(path for path in images if path.is_file())
    if len(files) < len(images):
        warnings.warn(
            f"{len(images) - len(files)} entries of '{folder}' are named like images and are no files, but folders, "
            "pipes, devices, sockets or links that lead nowhere; they are passed over.",
            PassedOverWarning,
            stacklevel=2,
        )
    return files


def _decode(listed: list[list[tuple[Path, int]]], size: int | None, progress: Progress, name: str) -> list[Split]:
    headers = [image_header(path) for images in listed for path, _ in images]
    shape = headers[0][0] if size is None else (size, size)
    channels = 1 if all(is_grey for _, is_grey in headers) else 3
    return [
        Split(
            decode_images([path for path, _ in images], shape, channels, size is not None, progress, name),
            torch.tensor([label for _, label in images]),
        )
        for images in listed
    ]
