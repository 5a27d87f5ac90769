"""Data sets of points: the full data, in memory or read in streams, and the weighted few that stand for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError


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
class Points:
    """Weighted data: points x, targets y and weights w; real, with their positions in the full data, or synthetic."""

    x: Tensor
    y: Tensor
    weights: Tensor
    hyperparameters: Mapping[str, Tensor] = field(default_factory=dict)
    """What a method learns beside the points, such as a step size."""
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """What a method's last loss asked to be handed on, such as the places of chains; empty at the first."""
    indices: Tensor | None = None
    """Positions in the full data, of real points."""

    def __len__(self) -> int:
        return len(self.x)

    def detached(self) -> Points:
        """The same points apart from any graph."""
        return replace(
            self,
            x=self.x.detach(),
            y=self.y.detach(),
            weights=self.weights.detach(),
            hyperparameters={name: value.detach() for name, value in self.hyperparameters.items()},
        )


def unit_weights(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=x.dtype)
