"""Standard streams that are closed, full, or lack characters: a sensible status and no traceback."""

from __future__ import annotations

import contextvars
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from pseudocoresets._cli import process
from pseudocoresets._cli.app import guarded

LISTING = "data list"
TRAINING = "experts --network mlp:width=4 --epochs 1 --count 1 --device cpu"


def shell(folder: Path, arguments: str, around: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a shell, with what is said around it; the status is its own."""
    whole = f"{before} {sys.executable} -m pseudocoresets {arguments} {around}; exit ${{PIPESTATUS[0]}}"
    command = ["bash", "-c", whole]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)


@pytest.mark.parametrize(
    ("arguments", "around", "status", "errors"),
    [
        (LISTING, ">&-", 0, ""),
        (LISTING, "<&- >&- 2>&-", 0, ""),
        (LISTING, "| true", 1, ""),
        (LISTING, "> /dev/full", 1, "Error: Cannot write the output: No space left on device.\n"),
        ("--help", "> /dev/full", 1, "Error: Cannot write the output: No space left on device.\n"),
        ("--version", "> /dev/full 2> /dev/full", 1, ""),
        ("show missing", "2>&-", 2, ""),
        ("show missing", "2> /dev/full", 2, ""),
        (TRAINING, "2> /dev/full > /dev/null", 0, ""),
    ],
)
def test_streams_that_cannot_be_written(tmp_path: Path, arguments: str, around: str, status: int, errors: str) -> None:
    result = shell(tmp_path, arguments, around)
    assert (result.returncode, result.stderr) == (status, errors)
    if arguments == TRAINING:
        assert (tmp_path / "experts" / "expert-0000.safetensors").is_file()


@pytest.mark.parametrize(
    "before",
    ["PYTHONIOENCODING=ascii", "PYTHONIOENCODING=latin-1", "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"],
)
def test_characters_that_the_terminal_lacks(tmp_path: Path, before: str) -> None:
    assert shell(tmp_path, "--help", "", before).returncode == 0
    evil = "prüfung-€-$(printf '\\377')"
    result = shell(tmp_path, f"show {evil}", "", before)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("Error: There is no file 'pr")


def test_an_interrupt_that_compiled_code_turned_into_an_error_is_an_interrupt() -> None:
    """As torch did of one within a storage: the signal's status, and no report of a bug."""

    def command() -> None:
        with suppress(KeyboardInterrupt):
            process._raise(signal.SIGTERM, None)
        raise ValueError("could not determine the shape")

    with pytest.raises(typer.Exit) as ended:
        contextvars.copy_context().run(guarded(command))
    assert ended.value.exit_code == 128 + signal.SIGTERM
