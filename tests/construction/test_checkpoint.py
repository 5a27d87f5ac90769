"""A checkpoint is read as a whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pseudocoresets._io.files import write_tensors
from pseudocoresets.construction.checkpoint import read_checkpoint
from pseudocoresets.core.errors import FileFormatError

DOCUMENT = {"run": "0" * 32, "iteration": 0, "iterations": 1, "records": []}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
def test_numbers_of_a_kind_that_no_state_has_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"records": torch.zeros(0, 0, dtype=torch.float64), "leaves/x": torch.ones(2)}
    write_tensors(tmp_path / "c.checkpoint", tensors, DOCUMENT)
    assert read_checkpoint(tmp_path / "c.checkpoint").iterations == 1
    write_tensors(tmp_path / "c.checkpoint", tensors | {"leaves/x": torch.ones(2).to(dtype)}, DOCUMENT)
    with pytest.raises(FileFormatError, match="which no state does"):
        read_checkpoint(tmp_path / "c.checkpoint")
