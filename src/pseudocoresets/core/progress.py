"""Progress: a bar with the time left on a terminal, a quiet line now and then otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO


class Progress(Protocol):
    """What long-running library functions tell about where they are."""

    def start(self, task: str, total: int) -> None: ...

    def advance(self, amount: int = 1, note: str = "") -> None: ...

    def finish(self) -> None: ...


class Silent:
    """The default inside the library: nothing is shown."""

    def start(self, task: str, total: int) -> None:
        pass

    def advance(self, amount: int = 1, note: str = "") -> None:
        pass

    def finish(self) -> None:
        pass


class Lines:
    """At most one line every ``interval`` seconds while a task goes on, and one when it ends."""

    def __init__(self, write: Callable[[str], object], interval: float = 10.0) -> None:
        self._write = write
        self._interval = interval

    def start(self, task: str, total: int) -> None:
        self._task, self._total, self._done = task, total, 0
        self._began = self._last = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._last >= self._interval and 0 < self._done < self._total:
            self._last = now
            left = (now - self._began) / self._done * (self._total - self._done)
            self._write(f"{self._task}: {self._done}/{self._total}, {left:.0f} s left {note}".rstrip())

    def finish(self) -> None:
        seconds = f"{time.monotonic() - self._began:.1f} s"
        whole = self._done >= self._total
        self._write(f"{self._task}: " + (f"done in {seconds}" if whole else f"stopped at {self._done}/{self._total}"))


class Bar:
    """A rich progress bar with the time left."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.description:<34}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(file=stream),
        )

    def start(self, task: str, total: int) -> None:
        self._bars.start()
        self._task = self._bars.add_task(task, total=total, note="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._bars.update(self._task, advance=amount, note=note)

    def finish(self) -> None:
        """Leave the finished bar on the screen; the next task begins below it."""
        self._bars.stop()
        self._bars.remove_task(self._task)


class UntilLost:
    """Another progress until it can no longer be shown, as when a terminal is closed; the work goes on in silence."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown

    def start(self, task: str, total: int) -> None:
        self._tell(lambda: self.shown.start(task, total))

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._tell(lambda: self.shown.advance(amount, note))

    def finish(self) -> None:
        self._tell(self.shown.finish)

    def _tell(self, what: Callable[[], None]) -> None:
        try:
            what()
        except (OSError, ValueError):
            self.shown = Silent()


@contextmanager
def task(progress: Progress, name: str, total: int) -> Iterator[Progress]:
    """Start ``name`` and finish it even when the block raises."""
    progress.start(name, total)
    try:
        yield progress
    finally:
        progress.finish()


def for_stream(stream: TextIO | None = None) -> Progress:
    """A bar if ``stream`` (standard error unless given) is a terminal, plain lines otherwise."""
    chosen: TextIO | None = sys.stderr if stream is None else stream
    if chosen is None or chosen.closed:
        return Silent()
    return UntilLost(Bar(chosen) if chosen.isatty() else Lines(lambda line: chosen.write(line + "\n")))
