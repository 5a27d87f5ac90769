"""Names for interchangeable parts, with a helpful answer to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from pseudocoresets.core.errors import InputError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to parts of one kind ("method", "network", ...)."""

    def __init__(self, kind: str, entries: Mapping[str, T]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise InputError(self._unknown(name)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def add(self, name: str, entry: T) -> None:
        """Register a part of the user's own."""
        self._entries[name] = entry

    def _unknown(self, name: str) -> str:
        nearest = difflib.get_close_matches(name.lower(), self._entries, n=1, cutoff=0.4)
        suggestion = f" Did you mean '{nearest[0]}'?" if nearest else ""
        return f"There is no {self.kind} named '{name}'.{suggestion} Known: {', '.join(self._entries)}."
