"""Progress: a bar with the time left on a terminal or in a notebook, a quiet line now and then otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Protocol, TextIO

from pseudocoresets.core.text import printable


class Progress(Protocol):
    """What long-running library functions tell about where they are."""

    def start(self, task: str, total: int) -> None: ...

    def advance(self, amount: int = 1, note: str = "") -> None: ...

    def finish(self) -> None: ...


class Silent:
    """Nothing is shown."""

    def start(self, task: str, total: int) -> None:
        pass

    def advance(self, amount: int = 1, note: str = "") -> None:
        pass

    def finish(self) -> None:
        pass


class Lines:
    """At most one line every ``interval`` seconds while a task goes on, and one when it ends.

    With ``brief``, nothing is said of a task that ended before its first line was due.
    """

    def __init__(self, write: Callable[[str], object], interval: float = 10.0, brief: bool = False) -> None:
        self._write = write
        self._interval = interval
        self._brief = brief

    def start(self, task: str, total: int) -> None:
        self._task, self._total, self._done, self._spoke = printable(task), total, 0, False
        self._began = self._last = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._last >= self._interval and 0 < self._done < self._total:
            self._last, self._spoke = now, True
            left = (now - self._began) / self._done * (self._total - self._done)
            share = f"{100 * self._done / self._total:.0f} %"
            self._write(f"{self._task}: {share}, about {in_words(left)} left {printable(note)}".rstrip())

    def finish(self) -> None:
        if self._brief and not self._spoke:
            return
        seconds = f"{time.monotonic() - self._began:.1f} s"
        whole = self._done >= self._total
        self._write(f"{self._task}: " + (f"done in {seconds}" if whole else f"stopped at {self._done}/{self._total}"))


class Bar:
    """A rich progress bar with the time left."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(file=stream),
        )

    def start(self, task: str, total: int) -> None:
        self._total, self._done = total, 0
        self._bars.start()
        self._task = self._bars.add_task(printable(task), total=total, note="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done += amount
        self._bars.update(self._task, advance=amount, note=printable(note) or f"{self._done}/{self._total}")

    def finish(self) -> None:
        """Leave the finished bar on the screen; the next task begins below it."""
        self._bars.stop()
        self._bars.remove_task(self._task)


class InNotebook:
    """A bar below the cell that works, drawn again at most every ``interval`` seconds."""

    def __init__(self, interval: float = 0.5) -> None:
        self._interval = interval

    def start(self, task: str, total: int) -> None:
        from IPython.display import HTML, display

        self._task, self._total, self._done, self._note = task, total, 0, ""
        self._began = self._last = time.monotonic()
        self._html = HTML
        self._place = display(HTML(self._drawn("")), display_id=True)

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done, self._note = self._done + amount, note or self._note
        now = time.monotonic()
        if now - self._last >= self._interval and 0 < self._done < self._total:
            self._last = now
            left = (now - self._began) / self._done * (self._total - self._done)
            self._update(f"about {in_words(left)} left {self._note}")

    def finish(self) -> None:
        seconds = f"{time.monotonic() - self._began:.1f} s"
        self._update(f"done in {seconds}" if self._done >= self._total else f"stopped after {seconds}")

    def _update(self, state: str) -> None:
        if self._place is not None:
            self._place.update(self._html(self._drawn(state)))

    def _drawn(self, state: str) -> str:
        bar = f'<progress value="{self._done}" max="{max(1, self._total)}"></progress>'
        return f"<div>{escape(self._task)} {bar} {escape(state)}</div>"


class Job:
    """Several tasks as one: the stages of a whole job on one bar, from its first task to its end.

    A stage's ``work`` is what it is expected to cost, in any unit that all stages share. With the time t that has
    passed and the rate r of time per unit so far, what is left is the rest of the present stage at its own pace and
    r times the work of those to come; the bar stands at t / (t + left).
    """

    def __init__(self, shown: Progress, name: str, stages: Sequence[Stage]) -> None:
        self._shown = shown
        self._name = name
        self._stages = stages
        self._at = -1
        self._task, self._share, self._position = "", 0.0, 0
        self._tasks_done, self._task_done, self._task_total = 0, 0, 1

    def __enter__(self) -> Job:
        self._began = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if not self._task:
            return
        if kind is None:
            self._shown.advance(PARTS - self._position)
        self._shown.finish()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The tasks that begin within belong to the stage of that name."""
        self._at = [each.name for each in self._stages].index(name)
        self._tasks_done, self._stage_began = 0, time.monotonic()
        yield
        self._tasks_done = self._stages[self._at].tasks
        self._task_done = 0
        if self._task:
            self._show()

    def start(self, task: str, total: int) -> None:
        if not self._task:
            self._shown.start(self._name, PARTS)
        self._task, self._task_done, self._task_total = task, 0, max(1, total)
        self._show()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._task_done += amount
        self._show()

    def finish(self) -> None:
        self._tasks_done += 1
        self._task_done = 0

    def _show(self) -> None:
        position = min(PARTS - 1, round(PARTS * self._reached()))
        note = f"{self._at + 1} of {len(self._stages)}: {self._task}"
        self._shown.advance(max(0, position - self._position), note)
        self._position = max(position, self._position)

    def _reached(self) -> float:
        """The share of the time that has passed."""
        now, stage = time.monotonic(), self._stages[self._at]
        share = min(1.0, (self._tasks_done + self._task_done / self._task_total) / stage.tasks)
        before = sum(each.work for each in self._stages[: self._at])
        behind, ahead = before + share * stage.work, sum(each.work for each in self._stages[self._at + 1 :])
        passed = now - self._began
        if behind <= 0 or passed <= 0:
            return 0.0
        own = (now - self._stage_began) * (1 - share) / share if share > 0 else passed / behind * stage.work
        return passed / (passed + own + passed / behind * ahead)


PARTS = 1000
"""Into which the bar of a job is divided."""


@dataclass(frozen=True)
class Stage:
    """A part of a job: its name, the work that is expected, and how many tasks it has."""

    name: str
    work: float
    tasks: int = 1


def in_words(seconds: float) -> str:
    """A time that people need not be exact about."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


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


def for_stream(stream: TextIO | None = None, brief: bool = False) -> Progress:
    """A bar if ``stream`` (standard error unless given) is a terminal, plain lines otherwise."""
    chosen: TextIO | None = sys.stderr if stream is None else stream
    if chosen is None or chosen.closed:
        return Silent()
    if chosen.isatty():
        return UntilLost(Bar(chosen))
    return UntilLost(Lines(lambda line: chosen.write(line + "\n"), brief=brief))


def by_default() -> Progress:
    """What the library's functions show where nobody says: a bar, or a line now and then of what takes long."""
    return UntilLost(InNotebook()) if in_notebook() else for_stream(brief=True)


def in_notebook() -> bool:
    """Whether the code runs in a cell of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"
