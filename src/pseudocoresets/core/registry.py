"""Names for interchangeable parts, with a helpful answer to a misspelt one."""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar, cast

from pseudocoresets.core.errors import InputError

T = TypeVar("T")
Option: TypeAlias = int | float | str


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to parts of one kind ("method", "network", ...).

    Installed packages can add parts as entry points of ``group``: their names are looked up when a name is not found
    or names are listed, and a part is imported when it is asked for. Names that are already here win. ``accepts`` says
    whether what was imported can be a part.
    """

    def __init__(
        self, kind: str, entries: Mapping[str, T], group: str = "", accepts: Callable[[object], bool] = callable
    ) -> None:
        self.kind = kind
        self.group = group
        self.accepts = accepts
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            if name not in self._plugins:
                raise InputError(self._unknown(name))
            self._entries[name] = self._load(self._plugins[name])
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._entries, **self._plugins})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._plugins

    def add(self, name: str, entry: T) -> None:
        """Register a part of the user's own."""
        self._entries[name] = entry

    @cached_property
    def _plugins(self) -> dict[str, importlib.metadata.EntryPoint]:
        if not self.group:
            return {}
        return {point.name: point for point in importlib.metadata.entry_points(group=self.group)}

    def _load(self, point: importlib.metadata.EntryPoint) -> T:
        problem = f"is not a {self.kind}"
        try:
            part = point.load()
            if self.accepts(part):
                return cast(T, part)
        except Exception as error:  # a plug-in is anybody's code: whatever it raises is its own affair
            problem = f"cannot be loaded ({type(error).__name__}: {error})"
        package = f" of the package '{point.dist.name}'" if point.dist is not None else ""
        raise InputError(
            f"The {self.kind} '{point.name}' is the plug-in '{point.value}'{package}, which {problem}; "
            "repair or remove it."
        )

    def _unknown(self, name: str) -> str:
        return (
            f"There is no {self.kind} named '{name}'.{did_you_mean(name.lower(), self, 0.4)} Known: {', '.join(self)}."
        )


def did_you_mean(name: str, known: Iterable[str], cutoff: float) -> str:
    """A question after a misspelt name, where one of the known ones is near."""
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f" Did you mean '{nearest[0]}'?" if nearest else ""


def parse_name(text: str, kind: str) -> tuple[str, dict[str, Option]]:
    """``"convnet:depth=3,norm=group"`` as a name and its options; ``kind`` says what it should name."""
    name, _, rest = text.partition(":")
    options: dict[str, Option] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"The options of a {kind} are written NAME:key=value,key=value; got '{text}'.")
        options[key.strip()] = parse_value(value.strip())
    return name.strip(), options


def parse_value(text: str) -> Option:
    """A number where ``text`` is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
