"""JSON that every reader takes: numbers that are not finite, which JSON has no words for, are null.

What is read is bounded: no value in it can exhaust the stack of what walks through it, or fail where it is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

LARGEST_DOCUMENT = 1 << 26
"""Characters."""
DEEPEST_NESTING = 50


def json_text(content: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(finite(content), indent=indent, allow_nan=False, sort_keys=sort_keys)


def parse_json(text: str) -> Any:
    """The content of a JSON document; ``ValueError`` says why there is none."""
    if len(text) > LARGEST_DOCUMENT:
        raise ValueError(f"it has more than {LARGEST_DOCUMENT:,} characters")
    try:
        content = json.loads(text, parse_constant=_finite_number, parse_float=_finite_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_bounds(content)
    return content


def _check_bounds(content: Any) -> None:
    """Refuse what is nested too deeply, and text that is no Unicode."""
    waiting = [(content, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEEPEST_NESTING:
            raise ValueError("it is nested too deeply")
        if isinstance(value, dict):
            waiting.extend((part, depth + 1) for pair in value.items() for part in pair)
        elif isinstance(value, list):
            waiting.extend((part, depth + 1) for part in value)
        elif isinstance(value, str):
            value.encode()


def _finite_number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def finite(content: Any) -> Any:
    """The same with null for every number that is not finite."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return content
