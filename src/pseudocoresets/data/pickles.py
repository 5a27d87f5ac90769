"""A reader of pickles that can build arrays, lists, dicts, tuples, strings and numbers, and nothing else.

It never imports or calls what a file names: it is a small machine for the opcodes that such data needs, and the few
names that an array's pickle mentions are symbols to it. Long strings, which hold the pixels, are read in pieces, and
where the caller wants them, so that they are never in memory twice.
"""

from __future__ import annotations

import codecs
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pseudocoresets.core.errors import FileFormatError

PIECE = 1 << 20
_MARK = object()
_NUMBER_TYPE = re.compile(r"[|<>=]?(b1|[iu][1248]|f[248])")
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_SYMBOLS = {
    **{(module, "_reconstruct"): "empty array" for module in _MULTIARRAY},
    **{(module, "_frombuffer"): "array from buffer" for module in _NUMERIC},
    ("numpy", "ndarray"): "array type",
    ("numpy", "dtype"): "number type",
    ("_codecs", "encode"): "latin-1 bytes",
    ("__builtin__", "bytes"): "no bytes",
}


class _Symbol(str):
    """One of the names above; nothing can be done with it but what ``_reduce`` does."""


class _NumberType:
    """``numpy.dtype`` of a pickle: a type code, and the byte order that BUILD adds."""

    def __init__(self, code: Any) -> None:
        self.code = _text(code)
        self.order = ""

    def dtype(self) -> np.dtype:
        code = self.code if self.code[:1] in "|<>=" else self.order + self.code
        if not _NUMBER_TYPE.fullmatch(code):
            raise ValueError(f"an array of type '{code}'")
        return np.dtype(code)


class _EmptyArray:
    """An array before BUILD gives it its shape and content."""


def read_pickle(path: str | os.PathLike[str], memory: np.ndarray | None = None) -> Any:
    """The content of the pickle ``path``: protocols 2 to 5, strings of Python 2 as bytes.

    A string of more than a mebibyte that is not the content of an array comes back as an array of its bytes.
    The first such string is read into ``memory``, if given: a flat array of bytes that is large enough for it.
    """
    try:
        with Path(path).open("rb") as file:
            return _Machine(file, memory).run()
    except OSError as error:
        raise FileFormatError(f"Cannot read '{path}': {error.strerror}.") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise FileFormatError(
            f"'{path}' is not a pickle of plain arrays, lists, dicts, strings and numbers ({error}); "
            "nothing in it was run."
        ) from None


class _Machine:
    """The pickle machine: a stack, a memo, and one method or table entry for each opcode."""

    def __init__(self, file: BinaryIO, memory: np.ndarray | None) -> None:
        self.file = file
        self.memory = memory
        self.size = os.fstat(file.fileno()).st_size
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            opcode = self.read(1)
            if opcode == b".":
                return _finished(self.stack.pop())
            if opcode in _CONSTANTS:
                self.stack.append(_CONSTANTS[opcode]())
            elif opcode in _NUMBERS:
                self.stack.append(self.number(_NUMBERS[opcode]))
            elif opcode in _STRINGS:
                self.stack.append(self.string(*_STRINGS[opcode]))
            elif opcode in _ACTIONS:
                _ACTIONS[opcode](self)
            else:
                raise ValueError(f"opcode {opcode!r}")

    def read(self, count: int) -> bytes:
        data = self.file.read(count)
        if len(data) < count:
            raise ValueError("the file ends too early")
        return data

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.read(struct.calcsize(layout)))[0]

    def line(self) -> str:
        line = self.file.readline()
        if not line.endswith(b"\n"):
            raise ValueError("the file ends too early")
        return line[:-1].decode("ascii")

    def string(self, length_layout: str, is_text: bool) -> str | bytes | np.ndarray:
        length = self.number(length_layout)
        if not 0 <= length <= self.size:
            raise ValueError("a string longer than the file")
        if length > PIECE:
            return self.long_string(length, is_text)
        data = self.read(length)
        return data.decode("utf-8", "surrogatepass") if is_text else data

    def long_string(self, length: int, is_text: bool) -> np.ndarray:
        """The bytes of a long string; Python 3 writes the bytes of protocol 2 as text of their Latin-1 characters."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        memory = np.empty(length, np.uint8) if self.memory is None else self.memory
        self.memory = None
        filled = 0
        for start in range(0, length, PIECE):
            piece = self.read(min(PIECE, length - start))
            if is_text:
                piece = decoder.decode(piece).encode("latin-1")
            memory[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        return memory[:filled]

    def marked(self) -> list[Any]:
        """Pop everything above the last mark."""
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise ValueError("a missing mark")
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise ValueError(f"something else where a {kind.__name__} should be")
        return self.stack[-1]

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise ValueError("an empty stack")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def append(self) -> None:
        item = self.stack.pop()
        self.top(list).append(item)

    def extend(self) -> None:
        items = self.marked()
        self.top(list).extend(items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.top(dict)[key] = value

    def set_items(self) -> None:
        items = self.marked()
        self.top(dict).update(zip(items[::2], items[1::2], strict=True))

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def symbol(self, module: str, name: str) -> None:
        if (module, name) not in _SYMBOLS:
            raise ValueError(f"it names '{module}.{name}'")
        self.stack.append(_Symbol(_SYMBOLS[module, name]))

    def symbol_from_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.symbol(_text(module), _text(name))

    def reduce(self) -> None:
        arguments, callee = self.stack.pop(), self.stack.pop()
        if not isinstance(callee, _Symbol) or not isinstance(arguments, tuple):
            raise ValueError("a call of something other than an array's parts")
        self.stack.append(_reduce(callee, arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack.pop()
        if not isinstance(state, tuple):
            raise ValueError("an unknown state")
        if isinstance(target, _NumberType):
            target.order = _text(state[1])
            self.stack.append(target)
            return
        if not isinstance(target, _EmptyArray):
            raise ValueError("a state for something that has none")
        _, shape, number_type, is_fortran, content = state
        array = _array(content, number_type, shape, "F" if is_fortran else "C")
        self.memo = {index: array if value is target else value for index, value in self.memo.items()}
        self.stack.append(array)


def _reduce(callee: _Symbol, arguments: tuple[Any, ...]) -> Any:
    if callee == "latin-1 bytes" and _text(arguments[1]) in ("latin1", "latin-1"):
        content = arguments[0]
        return content if isinstance(content, np.ndarray) else content.encode("latin-1")
    if callee == "no bytes" and arguments == ():
        return b""
    if callee == "number type":
        return _NumberType(arguments[0])
    if callee == "empty array" and arguments[0] == "array type":
        return _EmptyArray()
    if callee == "array from buffer":
        content, number_type, shape, order = arguments
        return _array(content, number_type, shape, _text(order))
    raise ValueError(f"a call of '{callee}'")


def _array(content: Any, number_type: Any, shape: Any, order: str) -> np.ndarray:
    if not isinstance(number_type, _NumberType) or order not in ("C", "F"):
        raise ValueError("an array of unknown type")
    dtype = number_type.dtype()
    sizes = [int(side) for side in shape]
    expected = dtype.itemsize
    for side in sizes:
        expected *= side
    memory = content if isinstance(content, np.ndarray) else np.frombuffer(content, np.uint8)
    if min(sizes, default=0) < 0 or len(memory) != expected:
        raise ValueError("an array whose content does not fit its shape")
    return memory.view(dtype).reshape(sizes, order=order)  # type: ignore[call-overload]


def _finished(value: Any) -> Any:
    """The result, if nothing but finished data is in it."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list | tuple):
            if id(item) in seen:
                continue
            seen.add(id(item))
            waiting.extend([*item, *item.values()] if isinstance(item, dict) else item)
        elif isinstance(item, _Symbol) or not isinstance(item, _PLAIN):
            raise ValueError("an unfinished value")
    return value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if type(value) is not str:
        raise ValueError("something else where a name should be")
    return value


def _long(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.read(machine.number("<B")), "little", signed=True))


_PLAIN = (np.ndarray, str, bytes, bytearray, bool, int, float, type(None))
_CONSTANTS: dict[bytes, Callable[[], Any]] = {
    b"N": lambda: None,
    b"\x88": lambda: True,
    b"\x89": lambda: False,
    b"}": dict,
    b"]": list,
    b")": tuple,
    b"(": lambda: _MARK,
}
_NUMBERS = {b"K": "<B", b"M": "<H", b"J": "<i", b"G": ">d"}
_STRINGS = {
    b"U": ("<B", False),
    b"T": ("<i", False),
    b"C": ("<B", False),
    b"B": ("<I", False),
    b"\x8e": ("<Q", False),
    b"\x96": ("<Q", False),
    b"\x8c": ("<B", True),
    b"X": ("<I", True),
    b"\x8d": ("<Q", True),
}
_ACTIONS: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda machine: machine.read(1),
    b"\x95": lambda machine: machine.read(8),
    b"\x8a": _long,
    b"a": _Machine.append,
    b"e": _Machine.extend,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
    b"t": lambda machine: machine.stack.append(tuple(machine.marked())),
    b"\x85": lambda machine: machine.tuple_of(1),
    b"\x86": lambda machine: machine.tuple_of(2),
    b"\x87": lambda machine: machine.tuple_of(3),
    b"q": lambda machine: machine.remember(machine.number("<B")),
    b"r": lambda machine: machine.remember(machine.number("<I")),
    b"\x94": lambda machine: machine.remember(len(machine.memo)),
    b"h": lambda machine: machine.stack.append(machine.memo[machine.number("<B")]),
    b"j": lambda machine: machine.stack.append(machine.memo[machine.number("<I")]),
    b"c": lambda machine: machine.symbol(machine.line(), machine.line()),
    b"\x93": _Machine.symbol_from_stack,
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}
