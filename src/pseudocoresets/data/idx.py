"""IDX, the format of MNIST and its relatives: a magic number, the sides of the array, its bytes."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from pseudocoresets._io.files import require_regular
from pseudocoresets.core.errors import FileFormatError

LARGEST_FILE = 1 << 28
"""Bytes that are unpacked at most; the largest official file has 47 million."""
_UNSIGNED_BYTE = 8


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """The array of unsigned bytes in an IDX file, which may be compressed by gzip.

    No more is unpacked than the header announces, and one byte to see whether there is more.
    """
    path = Path(path)
    try:
        require_regular(path)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            sides = _sides(file, path)
            content = bytearray(file.read(math.prod(sides) + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"Cannot read '{path}': {getattr(error, 'strerror', None) or error}.") from None
    if len(content) != math.prod(sides):
        found = "more" if len(content) > math.prod(sides) else len(content)
        raise FileFormatError(
            f"'{path}' is truncated or damaged: its header announces {' x '.join(map(str, sides))} bytes, "
            f"and {found} follow."
        )
    return torch.frombuffer(content, dtype=torch.uint8).reshape(sides)


def _sides(file: BinaryIO | gzip.GzipFile, path: Path) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE:
        raise FileFormatError(f"'{path}' is not an IDX file of unsigned bytes; fetch the data set again.")
    written = file.read(4 * magic[3])
    sides = struct.unpack(f">{magic[3]}I", written) if len(written) == 4 * magic[3] else ()
    if not 0 < math.prod(sides) <= LARGEST_FILE or not sides:
        raise FileFormatError(
            f"'{path}' is truncated or damaged: its header announces {' x '.join(map(str, sides)) or 'more'} bytes, "
            f"and there can be 1 to {LARGEST_FILE:,}."
        )
    return sides
