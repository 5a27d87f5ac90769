"""What files hold: kinds of JSON values and of tensors, each of which checks a value and says itself in words.

A file is checked as a whole before any of it is used; docs/files.md has the words of every kind of file.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.core.settings import SEED as SEEDS
from pseudocoresets.core.settings import Range
from pseudocoresets.core.text import shortened

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_TEXT = 10_000
LARGEST_SIZE = 10**15
"""Whole numbers up to which every reader of JSON is exact."""
FINITE = Range(-sys.float_info.max, sys.float_info.max)
DTYPES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
}
"""Types of tensors by the name that a safetensors header has for them."""


class Mismatch(FileFormatError):
    """What is wrong with a value; who reads the file adds its name."""


class Kind(Protocol):
    """What a JSON value may be."""

    def check(self, value: Any, name: str) -> None:
        """Raise ``Mismatch`` if ``value``, which messages call ``name``, is something else."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Text:
    longest: int = LONGEST_TEXT
    pattern: str = ""
    words: str = ""

    def check(self, value: Any, name: str) -> None:
        if (
            not isinstance(value, str)
            or len(value) > self.longest
            or not re.fullmatch(self.pattern or r"(?s).*", value)
        ):
            raise _mismatch(name, self, value)

    def __str__(self) -> str:
        return self.words or f"text of up to {self.longest:,} characters"


@dataclass(frozen=True)
class Number:
    within: Range = FINITE
    whole: bool = False

    def check(self, value: Any, name: str) -> None:
        kinds = int if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or value not in self.within:
            raise _mismatch(name, self, value)

    def __str__(self) -> str:
        kind = "whole number" if self.whole else "number"
        return kind if self.within is FINITE else f"{kind} {self.within}"


@dataclass(frozen=True)
class Constant:
    values: tuple[Any, ...]

    def check(self, value: Any, name: str) -> None:
        if not any(type(value) is type(each) and value == each for each in self.values):
            raise _mismatch(name, self, value)

    def __str__(self) -> str:
        return " or ".join(json.dumps(each) for each in self.values)


@dataclass(frozen=True)
class OneOf:
    kinds: tuple[Kind, ...]

    def check(self, value: Any, name: str) -> None:
        if not any(_fits(kind, value, name) for kind in self.kinds):
            raise _mismatch(name, self, value)

    def __str__(self) -> str:
        return ", or ".join(str(kind) for kind in self.kinds)


@dataclass(frozen=True)
class Nullable:
    kind: Kind

    def check(self, value: Any, name: str) -> None:
        if value is not None:
            self.kind.check(value, name)

    def __str__(self) -> str:
        return f"null, or {self.kind}"


@dataclass(frozen=True)
class ListOf:
    kind: Kind
    most: int

    def check(self, value: Any, name: str) -> None:
        if not isinstance(value, list) or len(value) > self.most:
            raise _mismatch(name, self, value)
        for number, each in enumerate(value):
            self.kind.check(each, f"{name}[{number}]")

    def __str__(self) -> str:
        return f"list of up to {self.most:,}, each {self.kind}"


@dataclass(frozen=True)
class Row:
    """A list of a fixed length."""

    kinds: tuple[Kind, ...]

    def check(self, value: Any, name: str) -> None:
        if not isinstance(value, list) or len(value) != len(self.kinds):
            raise _mismatch(name, self, value)
        for number, (kind, each) in enumerate(zip(self.kinds, value, strict=True)):
            kind.check(each, f"{name}[{number}]")

    def __str__(self) -> str:
        if len(set(map(str, self.kinds))) == 1:
            return f"list of {len(self.kinds)}, each {self.kinds[0]}"
        return f"list of {', '.join(map(str, self.kinds))}"


@dataclass(frozen=True)
class Object:
    """An object with these keys; keys that are not named here are for the reader to pass over, unless ``closed``."""

    required: Mapping[str, Kind] = field(default_factory=dict)
    optional: Mapping[str, Kind] = field(default_factory=dict)
    others: Kind | None = None
    """What the value of any other key must be."""
    closed: bool = False
    """Whether there must be no other key."""

    def check(self, value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise _mismatch(name, self, value)
        for key in self.required:
            if key not in value:
                raise Mismatch(f"{name} lacks '{key}'")
        for key, each in value.items():
            kind = self.required.get(key) or self.optional.get(key) or self.others
            if kind is not None:
                kind.check(each, f"'{key}'")
            elif self.closed:
                known = ", ".join(sorted({*self.required, *self.optional}))
                raise Mismatch(f"'{shortened(key)}' is not one of {known}")

    def __str__(self) -> str:
        named = [f"`{key}` ({kind})" for key, kind in self.required.items()]
        named += [f"perhaps `{key}` ({kind})" for key, kind in self.optional.items()]
        named += [] if self.others is None else [f"values each {self.others}"]
        return "object" + (f" of {', '.join(named)}" if named else "")


ANY_OBJECT = Object()
FLAG = Constant((True, False))
NULL = Constant((None,))
NAME = Text(1000)
HASH = Text(32, "[0-9a-f]{32}", "32 hexadecimal digits")
SIZE = Number(Range(1, LARGEST_SIZE), whole=True)
ANY_SIZE = Number(Range(0, LARGEST_SIZE), whole=True)
SEED = Number(SEEDS, whole=True)
NON_NEGATIVE = Number(Range(0, 1e300))
PLAIN = OneOf((Number(), FLAG, Text(), NULL))
"""What an option of a part may be."""


def _fits(kind: Kind, value: Any, name: str) -> bool:
    try:
        kind.check(value, name)
    except Mismatch:
        return False
    return True


class Header(NamedTuple):
    """What a file says of a tensor before it is read."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        known = {code: name for name, code in DTYPES.items()}
        return f"{self.shape} {known.get(self.dtype, self.dtype)}"


class Form(NamedTuple):
    """One shape with its names of sides, and the types that go with it."""

    sides: tuple[str, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Array:
    """A tensor: its shapes and types, written ``(m, classes) float32 or float64``, and the range of its values.

    A name of a side stands for one number in all of a file, and ``height*width`` for a product of them.
    """

    forms: Sequence[str]
    within: Range | None = None
    optional: bool = False

    def __str__(self) -> str:
        values = "" if self.within is None else f", values {self.within}"
        return ", or ".join(self.forms) + values + (", optional" if self.optional else "")

    @cached_property
    def _forms(self) -> list[Form]:
        parts = [re.fullmatch(r"\((.*?),?\) (.*)", form) for form in self.forms]
        split = [(part[1], part[2]) for part in parts if part is not None]
        return [
            Form(tuple(filter(None, sides.split(", "))), tuple(DTYPES[name] for name in dtypes.split(" or ")))
            for sides, dtypes in split
        ]

    def bind(self, header: Header, name: str, sides: dict[str, int]) -> None:
        """Check what the header says, and learn from it what the names of sides stand for."""
        fitting = [form for form in self._forms if header.dtype in form.dtypes and len(header.shape) == len(form.sides)]
        pairs = zip(header.shape, fitting[0].sides, strict=True) if fitting else ()
        if not fitting or not all(side > 0 and _agrees(side, words, sides) for side, words in pairs):
            known = ", ".join(f"{key} = {value}" for key, value in sides.items())
            raise Mismatch(f"'{name}' is {header} where {self} should be" + (f", with {known}" if known else ""))

    def check(self, tensor: Tensor, name: str) -> None:
        """Check the values of a tensor that is not empty."""
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise Mismatch(f"'{name}' holds values that are not finite")
        if self.within is not None:
            low, high = (float(end) for end in tensor.aminmax())
            if low not in self.within or high not in self.within:
                raise Mismatch(f"'{name}' holds values from {low:g} to {high:g}, which should lie {self.within}")


def check_headers(headers: Mapping[str, Header], arrays: Mapping[str, Array], sides: dict[str, int]) -> None:
    """Refuse a file that has other tensors than these, before any of them is read."""
    for name, array in arrays.items():
        if name in headers:
            array.bind(headers[name], name, sides)
        elif not array.optional:
            raise Mismatch(f"it lacks the tensor '{name}'")
    unknown = sorted(set(headers) - set(arrays))
    if unknown:
        raise Mismatch(f"it holds a tensor '{shortened(unknown[0])}', which does not belong there")


def _agrees(side: int, words: str, sides: dict[str, int]) -> bool:
    if words.isdecimal():
        return side == int(words)
    names = words.split("*")
    if len(names) == 1:
        return sides.setdefault(words, side) == side
    return side == math.prod(sides[name] for name in names)


def _mismatch(name: str, kind: Kind, value: Any) -> Mismatch:
    return Mismatch(f"{name} is {_in_words(value)} where {kind} should be")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the text {shortened(value)!r}"
    return {None: "null", True: "true", False: "false"}.get(value, shortened(repr(value)))
