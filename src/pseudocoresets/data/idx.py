"""IDX, the format of MNIST and its relatives: a magic number, the sides of the array, its bytes."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from pseudocoresets.core.errors import FileFormatError

LARGEST_FILE = 1 << 28
"""Bytes that are unpacked at most; the largest official file has 47 million."""
_UNSIGNED_BYTE = 8


def _read(path: Path) -> bytearray:
    if path.suffix == ".gz":
        with gzip.open(path) as packed:
            return bytearray(packed.read(LARGEST_FILE))
    content = bytearray(path.stat().st_size)
    with path.open("rb") as file:
        del content[file.readinto(content) :]
    return content


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """The array of unsigned bytes in an IDX file, which may be compressed by gzip."""
    path = Path(path)
    try:
        content = _read(path)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"Cannot read '{path}': {getattr(error, 'strerror', None) or error}.") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise FileFormatError(f"'{path}' is not an IDX file of unsigned bytes; fetch the data set again.")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    sides = struct.unpack(f">{dimensions}I", content[4:start]) if len(content) >= start else ()
    if not math.prod(sides) or len(content) - start != math.prod(sides) or not sides:
        raise FileFormatError(
            f"'{path}' is truncated or damaged: its header announces {' x '.join(map(str, sides)) or 'more'} bytes, "
            f"and {max(0, len(content) - start)} follow."
        )
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).reshape(sides)
