"""Text from outside, such as names of classes and files, as a terminal may show it."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with control codes, line breaks and what no encoding holds written out."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
