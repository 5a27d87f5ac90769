"""Tiny ImageNet: 200 classes of 64 x 64 JPEG files; its validation images serve as test data."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pseudocoresets._io.files import TensorFile, read_text, write_tensors
from pseudocoresets._io.schema import Array
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.progress import Progress
from pseudocoresets.data.catalogue import DatasetEntry, require_file
from pseudocoresets.data.download import Source

if TYPE_CHECKING:
    from torch import Tensor

    from pseudocoresets.data.dataset import Split

FOLDER = "tiny-imagenet-200"
DECODED = "decoded.safetensors"
CACHE_ARRAYS = {
    "train_images": Array(["(train, 3, 64, 64) uint8"]),
    "train_labels": Array(["(train,) int64"]),
    "test_images": Array(["(test, 3, 64, 64) uint8"]),
    "test_labels": Array(["(test,) int64"]),
}


def read_tiny_imagenet(entry: DatasetEntry, root: Path, progress: Progress) -> tuple[Split, Split]:
    """Training and test data; the decoded images are kept beside the files, since decoding takes a minute."""
    folder = root / FOLDER
    synsets = _synsets(root, entry)
    kept = _kept(folder / DECODED, synsets)
    if kept is not None:
        with suppress(FileFormatError):  # of other images than these
            return _checked(entry, kept, folder)
    listed = [_training_files(folder, synsets), _validation_files(folder, synsets)]
    splits = [_decode(entry, images, progress) for images in listed]
    checked = _checked(entry, splits, folder)
    _keep(folder / DECODED, splits, synsets)
    return checked


def _checked(entry: DatasetEntry, splits: list[Split], folder: Path) -> tuple[Split, Split]:
    train, test = splits
    return entry.check(train, entry.train_count, folder), entry.check(test, entry.test_count, folder)


def _synsets(root: Path, entry: DatasetEntry) -> list[str]:
    """The identifiers of the classes, in the order of their labels."""
    path = require_file(root, f"{FOLDER}/wnids.txt")
    synsets = sorted(read_text(path).split())
    if len(synsets) != len(entry.classes):
        raise FileFormatError(f"'{path}' names {len(synsets)} classes where {entry.name} has {len(entry.classes)}.")
    return synsets


def read_class_names(root: Path) -> tuple[str, ...]:
    """The first word for each class, from words.txt."""
    words = {}
    for line in read_text(require_file(root, f"{FOLDER}/words.txt")).splitlines():
        synset, _, names = line.partition("\t")
        words[synset] = names.partition(",")[0].strip()
    synsets = sorted(read_text(require_file(root, f"{FOLDER}/wnids.txt")).split())
    return tuple(words.get(synset) or synset for synset in synsets)


def _training_files(folder: Path, synsets: list[str]) -> list[tuple[Path, int]]:
    return [
        (path, label)
        for label, synset in enumerate(synsets)
        for path in sorted((folder / "train" / synset).rglob("*.JPEG"))
    ]


def _validation_files(folder: Path, synsets: list[str]) -> list[tuple[Path, int]]:
    """As published, one folder and a list of labels; or sorted into one folder per class, as many people do."""
    annotations = folder / "val" / "val_annotations.txt"
    if not annotations.is_file() or not (folder / "val" / "images").is_dir():
        return [
            (path, label)
            for label, synset in enumerate(synsets)
            for path in sorted((folder / "val" / synset).rglob("*.JPEG"))
        ]
    labels = {synset: label for label, synset in enumerate(synsets)}
    images = []
    for line in read_text(annotations).splitlines():
        name, _, rest = line.partition("\t")
        synset = rest.partition("\t")[0]
        if synset not in labels:
            raise FileFormatError(f"'{annotations}' gives '{name}' the class '{synset}', which wnids.txt has not.")
        images.append((folder / "val" / "images" / name, labels[synset]))
    return images


def _decode(entry: DatasetEntry, images: list[tuple[Path, int]], progress: Progress) -> Split:
    import torch

    from pseudocoresets.data.dataset import Split
    from pseudocoresets.data.images import decode_images

    channels, height, width = entry.shape
    pixels = decode_images([path for path, _ in images], (height, width), channels, False, progress, entry.name)
    return Split(pixels, torch.tensor([label for _, label in images], dtype=torch.int64))


def _kept(path: Path, synsets: list[str]) -> list[Split] | None:
    from pseudocoresets.data.dataset import Split

    try:
        file = TensorFile.open(path)
        if file.document.get("synsets") != synsets:
            return None
        tensors = file.tensors(CACHE_ARRAYS)
        return [Split(tensors[f"{part}_images"], tensors[f"{part}_labels"]) for part in ("train", "test")]
    except (FileFormatError, InputError):
        return None


def _keep(path: Path, splits: list[Split], synsets: list[str]) -> None:
    tensors: dict[str, Tensor] = {}
    for part, split in zip(("train", "test"), splits, strict=True):
        tensors |= {f"{part}_images": split.images, f"{part}_labels": split.labels}
    with suppress(InputError, OSError):  # a folder that may not be written to is decoded again next time
        write_tensors(path, tensors, {"synsets": synsets})


TINY_IMAGENET = DatasetEntry(
    name="tiny-imagenet",
    shape=(3, 64, 64),
    classes=tuple(f"class {index}" for index in range(200)),
    train_count=100_000,
    test_count=10_000,
    licence="ImageNet terms (non-commercial research)",
    read=read_tiny_imagenet,
    files=tuple(f"{FOLDER}/{name}" for name in ("wnids.txt", "words.txt", "train", "val")),
    sources=(
        Source(
            (
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "https://zenodo.org/records/10720917/files/tiny-imagenet-200.zip?download=1",
            ),
            "90528d7ca1a48142e341f4ef8d21d0de",
            248_100_043,
            FOLDER,
            "zip",
        ),
    ),
    read_classes=read_class_names,
)
