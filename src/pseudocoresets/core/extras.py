"""Packages that come with an extra of this library, and are imported when they are first needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pseudocoresets.core.errors import InputError


@contextmanager
def installed_by(extra: str, need: str) -> Iterator[None]:
    """An import that fails within the block is the sentence ``need``, with what to install."""
    try:
        yield
    except ImportError:
        raise InputError(f"{need}: pip install 'pseudocoresets[{extra}]'.") from None
