"""Vectors of one kind for each of several examples, such as gradients, in the forms in which they are cheap.

All that clipping asks of them is how long each is and what they add up to, weighted; both are in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 2**17
"""That are brought to double precision together, near the cores of a CPU."""


class Vectors(Protocol):
    """A part of each example's vector."""

    def squares(self) -> Tensor:
        """The squared norm of each example's part, float64."""
        ...

    def weighted(self, factors: Tensor) -> Tensor:
        """sum_i f_i v_i in float64; a factor of zero adds nothing, whatever the vector is."""
        ...


@dataclass(frozen=True)
class Stacked:
    """As they are: (examples, size)."""

    values: Tensor

    def squares(self) -> Tensor:
        parts = (torch.linalg.vector_norm(rows.double(), dim=1) for rows in self.values.split(self._at_once()))
        return torch.cat(list(parts)).square()

    def weighted(self, factors: Tensor) -> Tensor:
        total = torch.zeros(self.values.shape[1], dtype=torch.float64, device=self.values.device)
        count = self._at_once()
        for rows, weights in zip(self.values.split(count), factors.split(count), strict=True):
            all_count = self._on_cpu and bool(weights.all())  # elsewhere, that would wait for the device
            total += weights @ (rows if all_count else torch.where(weights[:, None] == 0, 0.0, rows)).double()
        return total

    @property
    def _on_cpu(self) -> bool:
        return self.values.device.type == "cpu"

    def _at_once(self) -> int:
        return max(1, NUMBERS_AT_ONCE // max(1, self.values.shape[1])) if self._on_cpu else len(self.values)


@dataclass(frozen=True)
class Outer:
    """Outer products l_i r_i', row by row, of (examples, rows) and (examples, columns); |l r'| = |l| |r|.

    Products of two numbers in single precision are exact in double precision, so the norm is that of what is added.
    """

    left: Tensor
    right: Tensor

    def squares(self) -> Tensor:
        return self.left.double().square().sum(1) * self.right.double().square().sum(1)

    def weighted(self, factors: Tensor) -> Tensor:
        absent = (factors == 0)[:, None]
        left = torch.where(absent, 0.0, self.left).double() * factors[:, None]
        return (left.mT @ torch.where(absent, 0.0, self.right).double()).flatten()


@dataclass(frozen=True)
class ExampleVectors:
    """Vectors in parts, and how the sums of the parts make one vector."""

    parts: Sequence[Vectors]
    joined: Callable[[list[Tensor]], Tensor] = torch.cat

    @classmethod
    def of(cls, vectors: Tensor) -> ExampleVectors:
        """Vectors (examples, size) in one part."""
        return cls([Stacked(vectors)])

    def squares(self) -> Tensor:
        """The squared norm of each example's whole vector."""
        return torch.stack([part.squares() for part in self.parts]).sum(0)

    def weighted(self, factors: Tensor) -> Tensor:
        return self.joined([part.weighted(factors) for part in self.parts])
