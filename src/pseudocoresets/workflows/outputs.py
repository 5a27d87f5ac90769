"""Whether an output already holds something, and whether that may be replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pseudocoresets._io.documents import json_text
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.text import shortened


def require_same_request(
    path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Refuse to replace what was made by another request; the sentence names the first difference.

    What a record of an older version does not have counts as its default.
    """
    difference = next(_differences(found, *(json.loads(json_text(each)) for each in (wanted, dict(defaults)))), None)
    if difference is not None:
        name, before, now = difference
        raise InputError(
            f"'{path}' holds a finished result with {name} {shortened(str(before))}, not {shortened(str(now))}; name "
            "another place with --out, or replace it with --force."
        )


def _differences(found: Any, wanted: Any, default: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        known = default if isinstance(default, Mapping) else {}
        for key, value in wanted.items():
            own = known.get(key)
            yield from _differences(found.get(key, own), value, own, f"{name}.{key}" if name else key)
    elif found != wanted:
        yield name, found, wanted
