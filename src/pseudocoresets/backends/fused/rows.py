"""The squared norms of many vectors, and their weighted sum, by one Triton kernel each.

    |v_i|^2 = sum_j v_ij^2,      sum_i f_i v_ij

Both are in double precision, of the numbers as they are stored, which are read once for each and copied nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pseudocoresets.dp import Stacked

COLUMNS, TURNS = 1024, 8
"""That one program takes the squares of at once, and how often."""
SUMMED_COLUMNS, SUMMED_ROWS = 128, 16
"""That one program adds up at once."""


@triton.jit
def _squares(values, out, columns, parts, block: tl.constexpr, turns: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.zeros((block,), tl.float64)
    for turn in range(turns):
        j = (part * turns + turn) * block + tl.arange(0, block)
        found = tl.load(values + row * columns + j, mask=j < columns, other=0.0).to(tl.float64)
        total += found * found
    tl.store(out + row * parts + part, tl.sum(total, 0))


@triton.jit
def _weighted(values, factors, out, count, columns, rows: tl.constexpr, block: tl.constexpr):
    """A row whose factor is zero is left out, whatever it holds."""
    j = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.zeros((rows, block), tl.float64)
    for first in range(0, count, rows):
        i = (first + tl.arange(0, rows)).to(tl.int64)
        factor = tl.load(factors + i, mask=i < count, other=0.0)[:, None]
        real = (factor != 0.0) & (j < columns)[None, :]
        found = tl.load(values + i[:, None] * columns + j[None, :], mask=real, other=0.0).to(tl.float64)
        total += factor * found
    tl.store(out + j, tl.sum(total, 0), mask=j < columns)


@dataclass(frozen=True)
class FusedStacked(Stacked):
    """Vectors (examples, size), one after another in memory."""

    def squares(self) -> Tensor:
        count, columns = self.values.shape
        parts = triton.cdiv(columns, COLUMNS * TURNS)
        out = torch.empty(count, parts, dtype=torch.float64, device=self.values.device)
        _squares[(count, parts)](self.values, out, columns, parts, COLUMNS, TURNS)
        return out.sum(1)

    def weighted(self, factors: Tensor) -> Tensor:
        count, columns = self.values.shape
        out = torch.empty(columns, dtype=torch.float64, device=self.values.device)
        programs = (triton.cdiv(columns, SUMMED_COLUMNS),)
        _weighted[programs](self.values, factors, out, count, columns, SUMMED_ROWS, SUMMED_COLUMNS)
        return out
