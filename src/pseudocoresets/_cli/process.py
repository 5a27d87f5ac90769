"""The process around a command: its standard streams, which may be closed or full, and the signals that end it.

Light, since it is imported before anything else: a signal during the imports that follow ends the process quietly.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import NoReturn, TextIO

LOST_OUTPUT = 1
A_PART_FAILED = 3
"""The status of a command that went on after one of its methods or cells failed."""
ENDING = [
    number
    for name, number in signal.Signals.__members__.items()
    if name in ("SIGINT", "SIGTERM", "SIGHUP") and signal.getsignal(number) is not signal.SIG_IGN
]
"""Signals that ask a process to end; one that is ignored, as by ``nohup``, stays so."""


class Ended(KeyboardInterrupt):
    """A signal that asks to end, which is treated as Ctrl-C: what was finished is kept."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


ARRIVED: ContextVar[Ended | None] = ContextVar("ARRIVED", default=None)
"""The signal that came: compiled code can turn its interrupt into an error of another type."""


def status_of(interrupt: KeyboardInterrupt) -> int:
    """128 and the number of the signal, as shells have it."""
    return 128 + (interrupt.number if isinstance(interrupt, Ended) else signal.SIGINT)


def heed_signals() -> None:
    """Ctrl-C, a request to end and a lost terminal raise ``KeyboardInterrupt`` from here on."""
    for number in ENDING:
        signal.signal(number, _raise)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """An interrupt in the middle of importing a compiled package leaves it half imported: leave, nothing is lost."""
    try:
        before = {number: signal.signal(number, _leave) for number in ENDING}
    except ValueError:  # not the main thread, which alone gets signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    ended = Ended(number)
    ARRIVED.set(ended)
    raise ended


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def prepare_streams() -> None:
    """Closed streams lead nowhere, and no character is an error: it is shown as '?' where the terminal lacks it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape" if stream.encoding.lower() == "utf-8" else "replace")


def _nowhere(number: int) -> TextIO:
    """A stream under the number of the closed one, so that no file that is opened later takes its place."""
    _lead_nowhere(number)
    return os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8")


def _lead_nowhere(number: int) -> None:
    handle = os.open(os.devnull, os.O_RDWR)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)


def say(sentence: str, end: str = "\n") -> None:
    """One line on standard error, if it can be written there."""
    try:
        sys.stderr.write(sentence + end)
        sys.stderr.flush()
    except OSError:
        _give_up(sys.stderr)


@contextmanager
def output_may_be_lost() -> Iterator[None]:
    """A reader that went away ends the command quietly, a full disk with one sentence."""
    try:
        try:
            yield
        finally:
            say("", end="")
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            about = "the output" if error.filename is None else f"'{error.filename}'"
            say(f"Error: Cannot write {about}: {error.strerror}.")
        _give_up(sys.stdout)
        raise SystemExit(LOST_OUTPUT) from None


def _give_up(stream: TextIO) -> None:
    """What is left in the stream's buffer must not fail once more when the process ends."""
    with suppress(OSError, ValueError):
        _lead_nowhere(stream.fileno())
