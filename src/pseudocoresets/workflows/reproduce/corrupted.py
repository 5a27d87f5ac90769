"""Corrupted test images, made once by several processes and kept beside the data."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pseudocoresets._io.files import make_folder, read_array, replacing
from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.data.corruptions import SEVERITIES, SHIFT_CORRUPTIONS, corrupt
from pseudocoresets.data.dataset import Split
from pseudocoresets.evaluation.shift import Corrupted
from pseudocoresets.workflows.parallel import cores, processes

KEPT_FROM = 2000
"""Fewer images are corrupted when they are asked for."""
MOST_PROCESSES = 16


def corrupted_images(split: Split, root: Path) -> Corrupted:
    """The paper's ten corruptions of ``split`` at all severities, from below ``root`` where they are many."""
    if len(split) < KEPT_FROM:
        return lambda name, severity: corrupt(split.images, name, severity)
    folder = make_folder(root / split.fingerprint[:16])
    missing = [each for each in product(SHIFT_CORRUPTIONS, SEVERITIES) if not _path(folder, *each).exists()]
    if missing:
        _write(folder / "clean.npy", split.images)
        with processes(min(MOST_PROCESSES, cores(), len(missing))) as mapped:
            list(mapped(partial(_make, folder), missing))
    return lambda name, severity: _read(_path(folder, name, severity), tuple(split.images.shape))


def _read(path: Path, shape: tuple[int, ...]) -> Tensor:
    array = read_array(path)
    if array.shape != shape or array.dtype != np.uint8:
        raise FileFormatError(
            f"'{path}' holds {array.dtype} {array.shape} where images {shape} of bytes should be; delete it, and it is "
            "made again."
        )
    return torch.from_numpy(np.array(array))


def _make(folder: Path, wanted: tuple[str, int]) -> None:
    clean = torch.from_numpy(np.load(folder / "clean.npy", allow_pickle=False))
    _write(_path(folder, *wanted), corrupt(clean, *wanted))


def _path(folder: Path, name: str, severity: int) -> Path:
    return folder / f"{name}-{severity}.npy"


def _write(path: Path, images: Tensor) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, images.cpu().numpy())
