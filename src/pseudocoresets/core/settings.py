"""Settings as the fields of a dataclass: what each is for, and whether given values fit them."""

from __future__ import annotations

import dataclasses
import inspect
import numbers
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import did_you_mean
from pseudocoresets.core.text import shortened

T = TypeVar("T")
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "none"}

COLLECTIONS = (list, tuple, dict, set, bytes)


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, without those that ``above`` and ``below`` exclude; never NaN."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        high_enough = value > self.low if self.above else value >= self.low
        return high_enough and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        low = f"above {self.low:g} and" if self.above else f"from {self.low:g} to"
        high = f"below {self.high:g}" if self.below else f"{self.high:g}"
        return f"{low} up to {high}" if self.above else f"{low} {high}"


RATE = Range(1e-30, 1e30)
"""Steps and learning rates, which single precision holds."""
POSITIVE = Range(0, 1e30, above=True)
"""Deviations in files."""
SHARE = Range(0, 1, below=True)
SCALE = Range(1e-9, 1e9)
"""Deviations, whose squares single precision holds."""
TEMPERATURE = Range(0, 1e9)
SEED = Range(-(2**63), 2**63 - 1)
ANY_WHOLE = Range(-1e9, 1e9)
ANY_NUMBER = Range(-1e30, 1e30)
"""What a number may be that has no range of its own; beyond is a slip, and would hang or overflow."""


SHARED = {"max_start_epoch": Range(0, 1e6), "expert_epochs": Range(0, 1e6)}
"""Options that several methods have and that mean the same in each."""


PRECISIONS = ("auto", "float32")


def require_precision(name: str) -> None:
    if name not in PRECISIONS:
        raise InputError(f"The precision must be one of {', '.join(PRECISIONS)}; got '{shortened(name)}'.")


def counted(most: float) -> Range:
    """At least one; more than ``most`` of them would not fit any machine or lifetime."""
    return Range(1, most)


def setting(
    default: T,
    help: str,
    *,
    within: Range | None = None,
    option: str | None = None,
    own_option: str | None = None,
) -> T:
    """A field of a settings dataclass, and how the command offers it; ``check_ranges`` sees to what it is ``within``.

    ``option`` is its name there where that is not the field's, such as ``--sampling-steps`` for ``steps``; settings of
    several parts with the same name are one option. ``own_option`` is a second one, which wins and is for this part
    alone.
    """
    metadata = {"help": help, "within": within, "option": option, "own_option": own_option}
    return dataclasses.field(default=default, metadata=metadata)


def build_settings(kind: type[T], values: Mapping[str, Any], whose: str) -> T:
    """``kind(**values)``, or one sentence that says which name or type is wrong."""
    check_options(kind, values, whose)
    return kind(**values)


def check_ranges(settings: Any) -> None:
    """Refuse numbers outside the range of their field, by the name that they are given by."""
    for field in dataclasses.fields(settings):
        value, within = getattr(settings, field.name), field.metadata.get("within")
        if within is not None and value is not None and value not in within:
            option = field.metadata["option"]
            name = f"'{field.name}'" if option is None else f"'{field.name}' ({option})"
            raise InputError(f"The setting {name} is a number {within}; got {shortened(repr(value))}.")


def check_options(build: Callable[..., Any], values: Mapping[str, Any], whose: str) -> None:
    """Refuse names that ``build`` does not take, and values that would fail only when they are used."""
    parameters = inspect.signature(build).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    hints = type_hints(build)
    ranged = _with_ranges(build)
    for name, value in values.items():
        if name not in parameters and not takes_any:
            nearest = did_you_mean(name, parameters, 0.5)
            raise InputError(f"{whose} has no option '{name}'.{nearest} Known: {', '.join(parameters)}.")
        if name in hints and not _fits(value, hints[name]):
            raise InputError(f"The option '{name}' of {_within(whose)} is {_in_words(hints[name])}; got {value!r}.")
        usual = SHARED.get(name, ANY_WHOLE if isinstance(value, int) else ANY_NUMBER)
        if isinstance(value, int | float) and name not in ranged and value not in usual:
            raise InputError(
                f"The option '{name}' of {_within(whose)} is a number {usual}; got {shortened(repr(value))}."
            )


def type_hints(build: Callable[..., Any]) -> dict[str, Any]:
    """The types of what ``build`` takes; none where they cannot be known here."""
    declares = build.__init__ if inspect.isclass(build) and not dataclasses.is_dataclass(build) else build
    try:
        return get_type_hints(declares)
    except (NameError, TypeError):
        return {}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that a union allows, or the one type that it is."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is one of the plain types; objects are for the part itself to check."""
    kinds = alternatives(hint)
    if isinstance(value, COLLECTIONS) and all(kind in WORDS or get_origin(kind) is Literal for kind in kinds):
        return False
    if not isinstance(value, bool | numbers.Real | str | None):
        return True
    return any(_is_a(value, kind) for kind in kinds)


def _is_a(value: Any, kind: Any) -> bool:
    if kind in (Any, object):
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    return kind in WORDS and isinstance(value, kind)


def _with_ranges(build: Callable[..., Any]) -> set[str]:
    fields = dataclasses.fields(build) if dataclasses.is_dataclass(build) else ()
    return {field.name for field in fields if field.metadata.get("within") is not None}


def _in_words(hint: Any) -> str:
    words = [WORDS[kind] for kind in alternatives(hint) if kind in WORDS]
    literals = [repr(value) for kind in alternatives(hint) if get_origin(kind) is Literal for value in get_args(kind)]
    return " or ".join(words + literals) or "an object of its own"


def _within(whose: str) -> str:
    return whose[0].lower() + whose[1:]
