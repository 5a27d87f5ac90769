"""Data sets of points: the full data, in memory or read in streams, and the weighted few that stand for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pseudocoresets.errors import FileFormatError, InputError
from pseudocoresets.files import read_tensors, write_tensors

FORMAT = "posterior-coreset"


class FullData(Protocol):
    """All the data, as batches of (x, y) that are read anew at each pass."""

    def __len__(self) -> int: ...

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]: ...

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The points at these positions."""
        ...


@dataclass(frozen=True)
class MemoryData:
    """Data that fit in memory: x (n, features) and y (n,)."""

    x: Tensor
    y: Tensor
    batch_size: int = 65536

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or not len(self.x):
            raise InputError(f"Data need as many targets as points, at least one; got {len(self.x)} and {len(self.y)}.")

    def __len__(self) -> int:
        return len(self.x)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.x.index_select(0, indices), self.y.index_select(0, indices)


@dataclass(frozen=True)
class WeightedPoints:
    """A coreset: points x, targets y and weights, real (with their positions in the full data) or synthetic."""

    x: Tensor
    y: Tensor
    weights: Tensor
    indices: Tensor | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """What the construction wants to say about itself; goes into the file."""

    def __len__(self) -> int:
        return len(self.x)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file."""
        tensors = {"x": self.x, "y": self.y, "weights": self.weights}
        if self.indices is not None:
            tensors["indices"] = self.indices
        write_tensors(path, tensors, {"format": FORMAT, "notes": self.notes})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WeightedPoints:
        tensors, document = read_tensors(path)
        if document.get("format") != FORMAT:
            raise FileFormatError(f"'{path}' is not a coreset of weighted points.")
        return cls(tensors["x"], tensors["y"], tensors["weights"], tensors.get("indices"), document["notes"])


def unit_weights(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=x.dtype)
