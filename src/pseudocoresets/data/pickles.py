"""A reader of pickles that can build arrays, lists, dicts, tuples, strings and numbers, and nothing else.

It is Python's own unpickler behind two gates. The opcodes are looked through before anything is built, and the few
names that an array's pickle mentions stand for the functions below, which check what they are given: nothing that a
file names is imported or called.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pseudocoresets.core.errors import FileFormatError

LARGEST_FILE = 1 << 30
"""Bytes; the largest official file has 155 million."""
MOST_COSTLY_KEYS = 1000
"""Tuples that are not the arguments of a call, which can be nested too deeply to be hashed, and numbers of more than
four bytes, many of which can have one hash."""

_BROKEN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, pickle.UnpicklingError)
_NUMBER_TYPE = re.compile(r"[|<>=]?(b1|[iu][1248]|f[248])")
_TUPLES = {"EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE"}
_COSTLY = _TUPLES | {"LONG1", "BINFLOAT"}
_PUTS, _GETS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"BINGET", "LONG_BINGET"}
_FILLS = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD", "MARK"}
_STRINGS = {"SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_BYTES = {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_NUMBERS = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_FRAMING = {"PROTO", "FRAME", "STOP"}
_CALLS = {"EMPTY_LIST", "EMPTY_DICT", "GLOBAL", "STACK_GLOBAL", "REDUCE"}
_ALLOWED = _TUPLES | _PUTS | _GETS | _FILLS | _STRINGS | _BYTES | _NUMBERS | _FRAMING | _CALLS


def read_pickle(path: str | os.PathLike[str]) -> Any:
    """The content of the pickle ``path``: protocols 2 to 5, strings of Python 2 as bytes."""
    try:
        if Path(path).stat().st_size > LARGEST_FILE:
            raise ValueError(f"it has more than {LARGEST_FILE:,} bytes")
        content = Path(path).read_bytes()
        _check_opcodes(content)
        return _finished(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except OSError as error:
        raise FileFormatError(f"Cannot read '{path}': {error.strerror}.") from None
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        raise FileFormatError(
            f"'{path}' is not a pickle of plain arrays, lists, dicts, strings and numbers ({error}); "
            "nothing in it was run."
        ) from None


def _check_opcodes(content: bytes) -> None:
    """Refuse what plain data does not need, and what would take memory or time out of proportion to the file.

    Lengths are held to the file by ``genops``. A remembered value is remembered as soon as it is made, under a number
    that is not far beyond the others; and a remembered tuple is not used again, because tuples of tuples that are
    their own neighbours take forever to hash.
    """
    made_by: dict[int, str] = {}
    costly, last, is_new = 0, "", False
    for opcode, argument, position in pickletools.genops(content):
        name = opcode.name
        costly += (name in _COSTLY) - (name == "REDUCE" and last in _TUPLES)
        if name not in _ALLOWED or costly > MOST_COSTLY_KEYS:
            raise ValueError(f"opcode {name}")
        if name in _PUTS:
            index = len(made_by) if argument is None else argument
            if index > (position or 0) or not is_new:
                raise ValueError("a value remembered out of turn")
            made_by[index], is_new = last, False
        elif name in _GETS and made_by[int(argument or 0)] in _TUPLES:
            raise ValueError("a tuple that is used twice")
        elif name not in _FRAMING:
            last, is_new = name, name not in _FILLS


class _Unpickler(pickle.Unpickler):
    """Knows the names of an array's parts, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        part = _PARTS.get((module.replace("numpy._core.", "numpy.core."), name))
        if part is None:
            raise ValueError(f"it names '{module}.{name}'")
        return _Part(part)


class _Part:
    """A function that a pickle can call, and cannot change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a state for something that has none")


class _NumberType:
    """``numpy.dtype`` of a pickle: a type code, and the byte order that its state adds."""

    def __init__(self, code: Any, *flags: Any) -> None:
        self.code = _text(code)
        self.order = ""

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def dtype(self) -> np.dtype[Any]:
        code = self.code if self.code[:1] in "|<>=" else self.order + self.code
        if not _NUMBER_TYPE.fullmatch(code):
            raise ValueError(f"an array of type '{code}'")
        return np.dtype(code)


class _Array(np.ndarray):
    """An array that takes its shape and content from the state of a pickle."""

    finished = False

    def __setstate__(self, state: Any) -> None:
        _, shape, number_type, is_fortran, content = state
        dtype = _number_type(number_type)
        if type(content) is not bytes or len(content) != dtype.itemsize * _product(shape):
            raise ValueError("an array whose content does not fit its shape")
        super().__setstate__((1, shape, dtype, bool(is_fortran), content))  # type: ignore[arg-type]
        self.finished = True


def _array_from_buffer(content: Any, number_type: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    dtype = _number_type(number_type)
    if type(content) not in (bytes, bytearray) or len(content) != dtype.itemsize * _product(shape):
        raise ValueError("an array whose content does not fit its shape")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if _text(order) == "F" else "C")


def _latin_1_bytes(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or _text(encoding) not in ("latin1", "latin-1"):
        raise ValueError("a string in another encoding")
    return text.encode("latin-1")


def _not_callable(*_: Any) -> Any:
    raise ValueError("a call of something other than an array's parts")


def _number_type(value: Any) -> np.dtype[Any]:
    if type(value) is not _NumberType:
        raise ValueError("an array of unknown type")
    return value.dtype()


def _product(shape: Any) -> int:
    """The number of values of a shape that is a tuple of whole numbers."""
    size = 1
    for side in shape:
        if type(shape) is not tuple or type(side) is not int or side < 0:
            raise ValueError("an array of unknown shape")
        size *= side
    return size


def _text(value: Any) -> str:
    if type(value) not in (str, bytes):
        raise ValueError("something else where a name should be")
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _finished(value: Any) -> Any:
    """The result, if nothing but finished data is in it."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list | tuple):
            if id(item) not in seen:
                seen.add(id(item))
                waiting.extend([*item, *item.values()] if isinstance(item, dict) else item)
        elif isinstance(item, _Part | _NumberType) or (isinstance(item, _Array) and not item.finished):
            raise ValueError("an unfinished value")
    return value


_PARTS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: np.empty(0, np.uint8).view(_Array),
    ("numpy.core.numeric", "_frombuffer"): _array_from_buffer,
    ("numpy", "ndarray"): _not_callable,
    ("numpy", "dtype"): _NumberType,
    ("_codecs", "encode"): _latin_1_bytes,
    ("__builtin__", "bytes"): lambda: b"",
}
