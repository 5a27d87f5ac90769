"""Readers of files, and how wrong files are tried on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hostile
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from pseudocoresets.core.errors import PseudocoresetsError

BATCH = 10
"""Files in one of hypothesis's examples, whose own cost they share."""
Write = Callable[[Path], None]


@dataclass(frozen=True)
class Reader:
    """A reader of one kind of file, and the strategy for writers of wrong files of it."""

    name: str
    wrong: st.SearchStrategy[Write]
    read: Callable[[Path], Any]
    file: str
    """The name that the file has to have."""
    share: int = 10
    """How many of its cases are tried for each one of the slowest reader's."""

    def attempt(self, write: Write, folder: Path) -> bool:
        """Whether a wrong file is read after all; any other error than one sentence of the library goes through."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        try:
            self.read(path)
        except PseudocoresetsError as error:
            sentence = str(error)
            assert sentence.isprintable() and 0 < len(sentence) < 5000, repr(sentence)
            return False
        return True


@dataclass
class Tried:
    """How many wrong files were tried, and how many of them were read."""

    cases: int = 0
    read: int = 0


def try_cases(reader: Reader, folder: Path, count: int, number: int | None = None) -> Tried:
    """Try ``count`` wrong files, the same ones at every time, or those of a ``number``; the first failure is raised."""
    tried = Tried()

    @settings(
        max_examples=max(1, count // BATCH),
        deadline=None,
        database=None,
        derandomize=number is None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(reader.wrong, min_size=BATCH, max_size=BATCH))
    def attempts(batch: list[Write]) -> None:
        for write in batch:
            tried.cases += 1
            tried.read += reader.attempt(write, folder)

    (attempts if number is None else seed(number)(attempts))()
    return tried


def texts(whole: Any) -> st.SearchStrategy[Write]:
    return hostile.texts(whole).map(writing)


def writing(content: bytes) -> Write:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


def damaged(whole: bytes) -> st.SearchStrategy[Write]:
    """A copy of a whole file that was cut, of which a few bits flipped, or into which bytes were put."""

    def changed(how: tuple[str, list[int], bytes]) -> Write:
        kind, places, other = how
        content = whole
        for place in places:
            content = hostile.flipped(content, place % (8 * len(content))) if kind == "flip" else content
        at = places[0] % len(whole)
        content = {"cut": whole[:at], "put": whole[:at] + other + whole[at:], "instead": other}.get(kind, content)
        return writing(content)

    kinds = st.sampled_from(["flip", "flip", "cut", "put", "instead"])
    places = st.lists(st.integers(0, 8 * len(whole) - 1), min_size=1, max_size=4)
    return st.tuples(kinds, places, st.binary(max_size=40)).map(changed)
