"""Arrays of numbers in MATLAB files of version 5, the format of SVHN.

After a header of 128 bytes come elements: a tag, which is a kind and a number of bytes, and as many bytes. An array is
an element of four: its class, its sides, its name and its numbers, the first side running fastest. It may be packed by
zlib. SciPy reads such files too, but a damaged one can end its process.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pseudocoresets._io.files import require_regular
from pseudocoresets.core.errors import FileFormatError

_HEADER, _TAG = 128, 8
_MATRIX, _PACKED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""How numbers are stored, by the kind of their element."""
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""What they are, by the class of the array; the others are text, cells and structures."""
_COMPLEX = 0x800
_LARGEST_RATIO = 1032
"""zlib packs at most so many bytes into one."""
_MOST_SIDES = 32


class _Element(NamedTuple):
    kind: int
    content: memoryview


def read_matlab(path: str | os.PathLike[str], names: Collection[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names; no more is unpacked than a file of this size can hold."""
    path = Path(path)
    found: dict[str, NDArray[Any]] = {}
    try:
        require_regular(path)
        content = memoryview(path.read_bytes())
        order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:_HEADER]), "")
        if not order:
            raise ValueError("it has not the header of version 5")
        for element in _elements(content[_HEADER:], order):
            matrix = _unpacked(element.content, order) if element.kind == _PACKED else element
            name, parts = _named(matrix, order)
            if name in names:
                found[name] = _array(name, parts, order)
            if len(found) == len(names):
                return found
        raise ValueError(f"it has no {' and no '.join(sorted(set(names) - set(found)))}")
    except OSError as error:
        raise FileFormatError(f"Cannot read '{path}': {error.strerror}.") from None
    except (ValueError, zlib.error) as error:
        raise FileFormatError(f"'{path}' is not a readable MATLAB file with {' and '.join(names)}: {error}.") from None


def _elements(content: memoryview, order: str) -> Iterator[_Element]:
    """One element after another; up to four bytes stand in the tag itself, and packed ones are not padded."""
    place = 0
    while place < len(content):
        if len(content) < place + _TAG:
            raise ValueError("it is cut off")
        kind, size = struct.unpack_from(f"{order}II", content, place)
        start, length = place + _TAG, size
        if kind >> 16:
            start, length, kind = place + 4, kind >> 16, kind & 0xFFFF
            place += _TAG
            if length > 4:
                raise ValueError("an element is longer than its place")
        else:
            place = start + (size if kind == _PACKED else -(-size // 8) * 8)
        if len(content) < start + length:
            raise ValueError("it is cut off")
        yield _Element(kind, content[start : start + length])


def _unpacked(packed: memoryview, order: str) -> _Element:
    unpacking = zlib.decompressobj()
    tag = unpacking.decompress(packed, _TAG)
    if len(tag) < _TAG:
        raise ValueError("it is cut off")
    kind, size = struct.unpack(f"{order}II", tag)
    if size > _LARGEST_RATIO * len(packed):
        raise ValueError(f"an array of {size:,} bytes cannot have been packed into {len(packed):,}")
    content = unpacking.decompress(unpacking.unconsumed_tail, size) if size else b""
    if len(content) < size:
        raise ValueError("it is cut off")
    return _Element(kind, memoryview(content))


def _named(matrix: _Element, order: str) -> tuple[str, list[_Element]]:
    if matrix.kind != _MATRIX:
        return "", []
    elements = _elements(matrix.content, order)
    parts = [part for _, part in zip(range(4), elements, strict=False)]
    return (bytes(parts[2].content).decode("latin-1"), parts) if len(parts) > 2 else ("", [])


def _array(name: str, parts: list[_Element], order: str) -> NDArray[Any]:
    flags = int(_numbers(parts[0], order)[0]) if parts[0].content else 0
    if flags & 0xFF not in _CLASSES or flags & _COMPLEX or len(parts) < 4:
        raise ValueError(f"{name} is no array of real numbers")
    sides = [int(side) for side in _numbers(parts[1], order)]
    numbers = _numbers(parts[3], order)
    if not 0 < len(sides) <= _MOST_SIDES or min(sides) < 0 or math.prod(sides) != len(numbers):
        raise ValueError(f"{name} does not have as many numbers as its sides say")
    return numbers.astype(_CLASSES[flags & 0xFF], copy=False).reshape(sides, order="F")


def _numbers(element: _Element, order: str) -> NDArray[Any]:
    if element.kind not in _NUMBERS:
        raise ValueError(f"it has elements of the unknown kind {element.kind}")
    stored = np.dtype(order + _NUMBERS[element.kind])
    if len(element.content) % stored.itemsize:
        raise ValueError("it is cut off")
    return np.frombuffer(element.content, stored)
