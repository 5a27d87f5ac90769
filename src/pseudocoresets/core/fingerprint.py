"""Identity by content: a hash that changes whenever what a value computes could change.

Tensors and arrays count by type, shape and bytes, containers and objects by what they hold, and functions by their
code, constants, nested functions, defaults, closures and the globals they refer to, bound objects included. What
belongs to an installed package or to Python itself counts by its name and version.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from importlib.metadata import packages_distributions, version
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError

DIGEST_BYTES = 16


class _Pair(NamedTuple):
    first: int


_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size)
_WRAPPERS = (staticmethod, classmethod)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, type(_Pair.first))
"""What Python makes of slots and of the fields of a named tuple, whose names are content of their own."""
IDENTITY = "identity"
"""The key of a dataclass field's metadata that says, if False, that the field does not count."""
_NOT_CONTENT = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"),
    *("__abstractmethods__", "_abc_impl"),
}


def fingerprint(*values: object) -> str:
    """A hexadecimal hash of the content of ``values``, the same in every process.

    Args:
        values: Tensors, arrays, numbers, texts, containers, functions, models and other objects made of these.

    Returns:
        32 hexadecimal digits.
    """
    writer = _Writer()
    for value in values:
        writer.write(value)
    return writer.digest.hexdigest()


@dataclass
class _Writer:
    """Feeds a tagged, prefix-free form of values to a hash; what was met before is named by its number."""

    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
    met: dict[int, int] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    """Keeps what was met alive, so that no other object gets its number."""

    def write(self, value: object) -> None:
        if isinstance(value, _PLAIN):
            self._text(type(value).__name__, repr(value))
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            self._array(np.asarray(value))
        elif id(value) in self.met:
            self._text("again", str(self.met[id(value)]))
        else:
            self.met[id(value)] = len(self.met)
            self.kept.append(value)
            self._structure(value)

    def _structure(self, value: object) -> None:
        if isinstance(value, types.ModuleType):
            self._text("module", _named(value.__name__, "") or value.__name__)
        elif isinstance(value, list | tuple):
            self._sequence(type(value).__name__, value)
        elif isinstance(value, Mapping):
            pairs = sorted(value.items(), key=lambda pair: repr(pair[0]))
            self._sequence("mapping", [part for pair in pairs for part in pair])
        elif isinstance(value, set | frozenset):
            self._sequence("set", sorted(fingerprint(element) for element in value))
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.MethodType):
            self._sequence("method", [value.__self__, value.__func__])
        elif isinstance(value, functools.partial):
            self._sequence("partial", [value.func, value.args, value.keywords])
        elif isinstance(value, _WRAPPERS):
            self._sequence(type(value).__name__, [value.__func__])
        elif isinstance(value, property):
            self._sequence("property", [value.fget])
        elif isinstance(value, cached_property):
            self._sequence("cached property", [value.func])
        else:
            self._named_or_content(value)

    def _named_or_content(self, value: Any) -> None:
        """Functions and classes of installed packages by name, those of the user, and objects, by content."""
        if isinstance(value, type | Callable) and hasattr(value, "__qualname__"):
            name = _named(getattr(value, "__module__", None) or "builtins", value.__qualname__)
            if name is not None:
                self._text("named", name)
            elif isinstance(value, type):
                self._class(value)
            else:
                self._function(value)
        else:
            self._object(value)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        used = {name: function.__globals__[name] for name in sorted(_names(code)) if name in function.__globals__}
        self._sequence("function", [code, function.__defaults__, function.__kwdefaults__, cells, used])

    def _code(self, code: types.CodeType) -> None:
        """Without names of files and line numbers."""
        self._sequence("code", [code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_consts])

    def _class(self, kind: type) -> None:
        own = {name: value for name, value in vars(kind).items() if name not in _NOT_CONTENT}
        held = {name: value for name, value in own.items() if not isinstance(value, _DESCRIPTORS)}
        self._sequence("class", [kind.__qualname__, kind.__bases__, held])

    def _object(self, value: object) -> None:
        if is_dataclass(value):
            content = {
                each.name: getattr(value, each.name) for each in fields(value) if each.metadata.get(IDENTITY, True)
            }
        else:
            content = _attributes(value)
        self._sequence("object", [type(value), content])

    def _sequence(self, kind: str, values: Any) -> None:
        elements = list(values)
        self._text(kind, str(len(elements)))
        for element in elements:
            self.write(element)

    def _tensor(self, tensor: Tensor) -> None:
        plain = tensor.detach().cpu().contiguous()
        self._text("tensor", f"{plain.dtype} {tuple(plain.shape)}")
        self.digest.update(plain.flatten().view(torch.uint8).numpy())

    def _array(self, array: np.ndarray) -> None:
        self._text("array", f"{array.dtype.str} {array.shape}")
        if array.dtype.hasobject:
            self._sequence("objects", array.ravel().tolist())
        else:
            self.digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")

    def _text(self, kind: str, text: str) -> None:
        self.digest.update(f"{kind}:{len(text)}:{text};".encode())


def _attributes(value: object) -> dict[str, Any]:
    """What an object holds, without what it has computed from that and cached."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    if not hasattr(value, "__dict__") and not slots:
        raise InputError(
            f"An object of the type {type(value).__name__} has no content that can be compared; build the model from "
            "tensors, numbers, functions and objects made of these."
        )
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    cached = {
        name for kind in type(value).__mro__ for name, each in vars(kind).items() if isinstance(each, cached_property)
    }
    return {name: content for name, content in held.items() if name not in cached}


def _names(code: types.CodeType) -> set[str]:
    """Every name that a function and those nested in it may look up among its globals."""
    nested = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*(_names(inner) for inner in nested))


def _named(module: str, name: str) -> str | None:
    """``package version: module.name`` for what is installed or part of Python; None for the user's own."""
    package = module.partition(".")[0]
    if package == __name__.partition(".")[0]:
        return f"{module}.{name}"
    if package in sys.stdlib_module_names and package != "__main__":
        return f"python: {module}.{name}"
    distributions = _distributions().get(package)
    return None if distributions is None else f"{distributions[0]} {version(distributions[0])}: {module}.{name}"


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()
