"""Text from outside, such as names of classes and files, as a terminal may show it."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_SHOWN = 40
MOST_LISTED = 20


def printable(text: str) -> str:
    """``text`` with control codes, line breaks and what no encoding holds written out."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def shortened(text: str) -> str:
    """The beginning of a long text, and how long it is."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:20]}... ({len(text)} characters)"


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """The first names of many, in quotes."""
    return ", ".join(f"'{name}'" for name in names[:most]) + (", ..." if len(names) > most else "")


def first_line(error: BaseException) -> str:
    """What an error says first, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
