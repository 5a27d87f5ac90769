"""Whether an output already holds something, and whether that may be replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.text import shortened


def require_same_request(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to replace what was made by another request; the sentence names the first difference."""
    difference = next(_differences(found, wanted), None)
    if difference is not None:
        name, before, now = difference
        raise InputError(
            f"'{path}' holds a finished result with {name} {shortened(str(before))}, not {shortened(str(now))}; name "
            "another place with --out, or replace it with --force."
        )


def _differences(found: Any, wanted: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key, value in wanted.items():
            yield from _differences(found.get(key), value, f"{name}.{key}" if name else key)
    elif found != wanted:
        yield name, found, wanted
