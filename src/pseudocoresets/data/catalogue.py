"""What is known of a data set before it is read: its size, its licence, its origin and what its folder holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.core.progress import Progress, Silent
from pseudocoresets.data.download import Source, fetch_sources

if TYPE_CHECKING:
    import torch

    from pseudocoresets.data.dataset import Dataset, Split

Reader: TypeAlias = Callable[["DatasetEntry", Path, Progress], "tuple[Split, Split]"]
"""Training and test data of an entry, from the folder that holds it."""


@dataclass(frozen=True)
class DatasetEntry:
    """One data set of the catalogue. Counts and shape are what ``read`` holds the files to."""

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    train_count: int
    test_count: int
    licence: str
    read: Reader
    files: tuple[str, ...] = ()
    """What must lie below the data folder for the set to be here, in torchvision's layout."""
    sources: tuple[Source, ...] = ()
    flippable: bool = True
    whiten: bool = False
    """Whether inputs are ZCA-whitened unless the user says otherwise."""
    read_classes: Callable[[Path], tuple[str, ...]] | None = None
    """Reads the class names from the data folder, where they are not known beforehand."""

    @property
    def download_size(self) -> int:
        """Bytes to fetch."""
        return sum(source.size for source in self.sources)

    def missing(self, root: Path) -> list[str]:
        """The files of this set that are not below ``root``."""
        return [name for name in self.files if find_file(root, name) is None]

    def is_present(self, root: Path) -> bool:
        return not self.missing(root)

    def fetch(self, root: Path, progress: Progress | None = None) -> None:
        """Download what is missing; does nothing if the set is here."""
        fetch_sources(self.name, self.sources, root, self.is_present, progress or Silent())

    def load(
        self,
        root: Path,
        whiten: bool | None = None,
        device: str | torch.device | None = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """Read and check the files below ``root``; ``device`` is where whitening is fitted."""
        from pseudocoresets.data.dataset import Dataset
        from pseudocoresets.data.zca_cache import FitOnDemand

        train, test = self.read(self, root, progress or Silent())
        return Dataset(
            self.name,
            train,
            test,
            self.classes if self.read_classes is None else self.read_classes(root),
            FitOnDemand(self.whiten if whiten is None else whiten, device),
            self.flippable,
        )

    def check(self, split: Split, count: int, path: Path) -> Split:
        """``split``, if it is what this set has; ``path`` is what the message names."""
        shape = tuple(split.images.shape[1:])
        if shape != self.shape:
            raise FileFormatError(f"'{path}' holds images of shape {shape} where {self.name} has {self.shape}.")
        if len(split.images) != count or len(split.labels) != count:
            raise FileFormatError(
                f"'{path}' holds {len(split.images)} images and {len(split.labels)} labels "
                f"where {self.name} has {count}."
            )
        if split.labels.dim() != 1:
            raise FileFormatError(f"'{path}' holds labels of shape {tuple(split.labels.shape)}, not one per image.")
        if count and not (split.labels.min() >= 0 and split.labels.max() < len(self.classes)):
            raise FileFormatError(
                f"'{path}' holds labels from {split.labels.min()} to {split.labels.max()} where {self.name} has "
                f"{len(self.classes)} classes."
            )
        return split


def find_file(root: Path, name: str) -> Path | None:
    """The file ``name`` below ``root``, or its compressed form if it is an IDX file."""
    path = root / name
    if path.exists():
        return path
    compressed = path.with_name(path.name + ".gz")
    return compressed if name.endswith("-ubyte") and compressed.exists() else None


def require_file(root: Path, name: str) -> Path:
    """``find_file``, or a sentence that says what is missing."""
    path = find_file(root, name)
    if path is None:
        raise FileFormatError(f"There is no file '{root / name}'; the folder is incomplete.")
    return path
