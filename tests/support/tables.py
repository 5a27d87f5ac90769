"""Parquet files of a logistic regression, in parts that a test can count."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from pseudocoresets.data import large

ROWS, FEATURES = 900, 3


def write_parts(folder: Path, rows: int = ROWS, target: str = "y", **columns: Any) -> Path:
    """Two files of three row groups each; ``columns`` replace others or are added."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stream = np.random.default_rng(7)
    x = stream.standard_normal((rows, FEATURES)).astype(np.float32) * [1, 3, 0.1] + [0, 100, -5]
    eta = (x - [0, 100, -5]) @ [1.0, 0.5, -8.0]
    table = {f"x{i}": x[:, i] for i in range(FEATURES)} | {target: (stream.random(rows) < 1 / (1 + np.exp(-eta))) * 1.0}
    table |= columns
    folder.mkdir(exist_ok=True)
    half = rows // 2
    for name, part in (("a", slice(None, half)), ("b", slice(half, None))):
        values = {column: each[part] for column, each in table.items()}
        parquet.write_table(pyarrow.table(values), folder / f"{name}.parquet", row_group_size=-(-half // 3))
    return folder


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part for each row group of these files, and batches smaller than it."""
    monkeypatch.setattr(large, "PART_ROWS", ROWS // 6)
    monkeypatch.setattr(large, "BATCH_ROWS", 64)


def slow_moments(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Sums whose terms take a while."""
    time.sleep(0.1)
    return x.T @ x, y @ x
