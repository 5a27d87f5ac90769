"""The one loop of every comparison: methods, sizes and seeds, whatever is compared and however it is judged.

A cell is one method at one size with one seed. What decides its result is its identity: settings, and the content of
data, networks, experts and methods. A cell that fails is a result that says why, and the others go on. Where there is a
folder for it, a finished cell is read from there as long as its identity stays the same, and the traceback of a failed
one is kept there.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from pseudocoresets._io.documents import json_text
from pseudocoresets._io.files import CHECKSUM, make_folder, read_json, write_json, write_text
from pseudocoresets._io.schema import ANY_OBJECT
from pseudocoresets.core.devices import is_out_of_memory
from pseudocoresets.core.errors import FileFormatError, PseudocoresetsError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.mapping import Mapper, in_this_process
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.coreset import library_versions

Document = Mapping[str, Any]
"""What is known of a cell, as JSON holds it."""
RESULT, FAILURE = "metrics.json", "failure.txt"


class Cell(NamedTuple):
    """One construction."""

    method: str
    size: int
    seed: int

    def __str__(self) -> str:
        return f"{self.method} {self.size}"


C = TypeVar("C")
"""What tells one cell from another; as text, it is what progress says of it."""
C_contra = TypeVar("C_contra", contravariant=True)


@dataclass(frozen=True)
class Outcome(Generic[C]):
    """What a cell gave: a document, or the reason why there is none."""

    cell: C
    document: Document | None
    failure: str | None
    seconds: float


class Judge(Protocol[C_contra]):
    """How cells are made and judged: images by ``evaluate`` beside a control, rows by ``distance`` to a reference."""

    def folder(self, cell: C_contra, /) -> Path | None:
        """Where its results are kept, if they are."""
        ...

    def identity(self, cell: C_contra, /) -> Document:
        """All that decides its result but the library's version."""
        ...

    def measure(self, cell: C_contra, /) -> Document:
        """Construct it and judge it."""
        ...


def run_cells(
    cells: Sequence[C],
    judge: Judge[C],
    progress: Progress | None = None,
    affordable: Callable[[C], bool] = lambda cell: True,
    mapper: Mapper = in_this_process,
) -> Iterator[Outcome[C]]:
    """Every cell in turn, as soon as it is there; only an interrupt ends the loop before the last one.

    A cell that is not ``affordable`` when its turn comes is left out. ``mapper`` may compute cells in other processes;
    what the judge keeps to itself then stays there. A cell whose workers were lost has failed.
    """
    with task(progress or Silent(), "coresets", len(cells)) as shown:
        attempt: Callable[[C], Outcome[C]] = partial(_attempt, judge=judge)
        outcomes: Iterator[Outcome[C]] = mapper(attempt, filter(affordable, cells), lost_cell)
        for outcome in outcomes:
            shown.advance(note=str(outcome.cell))
            yield outcome
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def lost_cell(cell: C, why: str) -> Outcome[C]:
    """A cell that nobody brought to its end."""
    return Outcome(cell, None, why, 0.0)


def _attempt(cell: C, judge: Judge[C]) -> Outcome[C]:
    folder, began = judge.folder(cell), time.perf_counter()
    document, failure = None, None
    try:
        document = once(folder, judge.identity(cell), lambda: judge.measure(cell))
    except Exception as error:
        failure = reason(error)
        if folder is not None:
            write_text(folder / FAILURE, traceback.format_exc())
    return Outcome(cell, document, failure, time.perf_counter() - began)


def once(folder: Path | None, identity: Document, compute: Callable[[], Document]) -> Document:
    """The result that ``folder`` holds if its identity is this one, else the result of ``compute``, which is kept."""
    if folder is None:
        return compute()
    known = json.loads(json.dumps(dict(identity) | {"library": library_versions()["pseudocoresets"]}))
    path = make_folder(folder) / RESULT
    found = whole_result(path)
    if found is not None and all(found.get(key) == value for key, value in known.items()):
        return found
    document = {**compute(), **known}
    write_json(path, document | {CHECKSUM: _checksum(document)})
    (folder / FAILURE).unlink(missing_ok=True)
    return document


def whole_result(path: Path) -> Document | None:
    """What was written there, if it is there and nothing has changed it since."""
    try:
        found = dict(read_json(path, ANY_OBJECT))
    except FileFormatError:
        return None
    checksum = found.pop(CHECKSUM, None)
    return found if checksum == _checksum(found) else None


def _checksum(document: Document) -> str:
    return fingerprint(json_text(document, sort_keys=True))


def as_number(value: float | None) -> float:
    """What is not finite is null in a file."""
    return math.nan if value is None else value


def as_text(value: float | None, form: str, unit: str = "", factor: float = 1.0) -> str:
    """A number of a table; nothing where there is none."""
    return "" if value is None else f"{factor * value:{form}}{unit}"


def reason(error: Exception) -> str:
    """The library's own sentence, or the name and first line of what was not foreseen."""
    if isinstance(error, PseudocoresetsError):
        return str(error)
    first = next(iter(str(error).strip().splitlines()), "")
    if is_out_of_memory(error):
        return f"There was too little memory; ask for fewer chains, images or a smaller network. [{first}]"
    return f"{type(error).__name__}{': ' + first if first else ''}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
