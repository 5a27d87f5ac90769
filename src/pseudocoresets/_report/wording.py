"""Values as people read them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

NOTHING = "–"


def number(value: Any) -> str:
    """Four significant digits, or a dash for what is missing."""
    if not is_number(value):
        return NOTHING
    if abs(value) < 1e9 and value == int(value):
        return with_minus(f"{int(value):,}")
    return with_minus(f"{value:.4g}")


def as_text(value: Any) -> str:
    """Any JSON value on one line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value) if is_number(value) else str(value)
    if isinstance(value, list | tuple):
        return ", ".join(as_text(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {as_text(item)}" for key, item in value.items())
    return str(value)


def flattened(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as rows, with dots between the names of the levels."""
    rows: list[tuple[str, str]] = []
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += flattened(value, name + ".")
        else:
            rows.append((name, as_text(value) or "none"))
    return rows


def duration(seconds: Any) -> str:
    if not is_number(seconds):
        return NOTHING
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count_of(count: int, singular: str, plural: str | None = None) -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def with_minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold; JSON has integers of any length."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) <= sys.float_info.max
