"""Progress: a bar with the time left on a terminal, plain lines otherwise."""

from __future__ import annotations

import io
import os
import pty
import re
from typing import Any

import pytest

from pseudocoresets.core import progress
from pseudocoresets.core.progress import (
    Bar,
    InNotebook,
    Job,
    Lines,
    Silent,
    Stage,
    UntilLost,
    by_default,
    for_stream,
    task,
)


def count_to_three(shown: progress.Progress, name: str = "counting") -> None:
    with task(shown, name, 3):
        for _ in range(3):
            shown.advance(note="note")


def test_a_stream_that_is_no_terminal_gets_plain_lines() -> None:
    stream = io.StringIO()
    shown = for_stream(stream)
    count_to_three(shown)
    assert isinstance(shown, UntilLost) and isinstance(shown.shown, Lines)
    assert re.fullmatch(r"counting: done in \d+\.\d s\n", stream.getvalue())


def test_the_default_is_the_standard_error_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    count_to_three(for_stream())
    captured = capsys.readouterr()
    assert "counting: done" in captured.err
    assert captured.out == ""


def test_a_line_now_and_then_says_how_long_it_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    lines: list[str] = []
    shown = Lines(lines.append, interval=10)
    shown.start("work", 100)
    shown.advance(0)
    for second in range(1, 26):
        now = float(second)
        shown.advance(2, "x")
    assert lines == ["work: 20 %, about 40 s left x", "work: 40 %, about 30 s left x"]
    shown.advance(50)
    shown.finish()
    assert lines[-1] == "work: done in 25.0 s"


def test_a_task_that_fails_is_not_called_done() -> None:
    lines: list[str] = []
    shown = Lines(lines.append)
    with pytest.raises(RuntimeError), task(shown, "work", 10):
        shown.advance(4)
        raise RuntimeError
    assert lines == ["work: stopped at 4/10"]


def test_a_terminal_gets_a_bar_with_counts_and_the_time_left() -> None:
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal:
            shown = for_stream(terminal)
            assert isinstance(shown, UntilLost) and isinstance(shown.shown, Bar)
            count_to_three(shown, "first task")
            count_to_three(shown, "second task")
        text = _read_all(ours)
    finally:
        os.close(ours)
    assert "100%" in text
    assert "left 0:00:00" in text
    assert "━" in text
    after_second = text[text.index("second task") :]
    assert "first task" not in after_second, "a finished bar is not drawn again"


def test_a_job_of_several_stages_is_one_bar_that_knows_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of work 1, 3 and 2 at ten seconds a unit: the pace is even, so the bar is the clock."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    lines: list[str] = []
    with Job(Lines(lines.append, interval=25), "job", [Stage("a", 1), Stage("b", 3, tasks=2), Stage("c", 2)]) as job:
        for name, tasks, seconds in (("a", 1, 10), ("b", 2, 15), ("c", 1, 20)):
            with job.stage(name):
                for number in range(tasks):
                    with task(job, f"doing {name}{number}", seconds):
                        for _ in range(seconds):
                            now += 1
                            job.advance()
    assert lines == [
        "job: 42 %, about 35 s left 2 of 3: doing b0",
        "job: 83 %, about 10 s left 3 of 3: doing c0",
        "job: done in 60.0 s",
    ]


def test_a_job_that_fails_is_not_called_done() -> None:
    lines: list[str] = []
    job = Job(Lines(lines.append), "job", [Stage("a", 1)])
    with pytest.raises(RuntimeError), job, job.stage("a"), task(job, "doing a", 1):
        raise RuntimeError
    assert lines == ["job: stopped at 0/1000"]


def test_what_nobody_asked_for_is_shown_only_if_it_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count_to_three(by_default())
    assert capsys.readouterr().err == ""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = by_default()
    with task(shown, "long", 3):
        for _ in range(3):
            now += 60
            shown.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["long: 33 %, about 2 min left", "long: 67 %, about 60 s left", "long: done in 180.0 s"]


def test_in_a_notebook_one_bar_is_drawn_again_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display")
    drawn: list[str] = []

    class Place:
        def update(self, html: Any) -> None:
            drawn.append(html.data)

    monkeypatch.setattr(display, "display", lambda html, display_id: drawn.append(html.data) or Place())
    count_to_three(InNotebook(interval=0), "<b>counting</b>")
    assert drawn[0].startswith("<div>&lt;b&gt;counting&lt;/b&gt; <progress")
    assert 'value="3" max="3"' in drawn[-1] and "done in" in drawn[-1]


def test_silence_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    count_to_three(Silent())
    assert capsys.readouterr() == ("", "")


def _read_all(descriptor: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # a terminal whose other end is closed
            break
        if not part:
            break
        parts.append(part)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(parts).decode())


@pytest.mark.parametrize("lost", [OSError(5, "Input/output error"), ValueError("I/O operation on closed file")])
def test_the_work_goes_on_when_its_progress_can_no_longer_be_shown(lost: Exception) -> None:
    told: list[str] = []

    def write(line: str) -> None:
        told.append(line)
        raise lost

    shown = UntilLost(Lines(write, interval=0))
    count_to_three(shown)
    assert len(told) == 1


def test_nothing_is_shown_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.sys, "stderr", None)
    count_to_three(for_stream())
    stream = io.StringIO()
    stream.close()
    count_to_three(for_stream(stream))
