"""Text from outside, such as names of classes and files, as a terminal may show it."""

from __future__ import annotations

LONGEST_SHOWN = 40


def printable(text: str) -> str:
    """``text`` with control codes, line breaks and what no encoding holds written out."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def shortened(text: str) -> str:
    """The beginning of a long text, and how long it is."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:20]}... ({len(text)} characters)"
