"""A construction that is killed or interrupted at any moment, and started again."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from small import Invoke

from pseudocoresets._cli.app import build_app
from pseudocoresets._io import files
from pseudocoresets.construction.loop import Construction
from pseudocoresets.coreset import Coreset
from pseudocoresets.kernels import Langevin
from pseudocoresets.methods import ContrastiveDivergence

ITERATIONS = 300
PATIENCE = 60.0

needs_fork = pytest.mark.skipif(torch.cuda.is_available(), reason="a process that holds a CUDA device cannot fork")


def arguments(experts_folder: Path, out: Path) -> list[str]:
    """The settings matter little; a checkpoint every ten iterations makes many moments to be killed at."""
    return [
        *("construct", "--dataset", "digits", "--ipc", "1", "--experts", str(experts_folder), "--out", str(out)),
        *("--iterations", str(ITERATIONS), "--learning-rate", "10", "--device", "cpu", "--checkpoint-seconds", "0"),
        *("--set", "expert_epochs=2", "--set", "max_start_epoch=1", "--set", "steps=3"),
    ]


@pytest.fixture(scope="module")
def undisturbed(experts_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The coreset of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("undisturbed") / "c.safetensors"
    call(arguments(experts_folder, out))
    return out


def call(command: list[str]) -> None:
    with redirect_stderr(io.StringIO()) as errors, redirect_stdout(io.StringIO()):
        status = build_app()(command, standalone_mode=False)
    assert not status, errors.getvalue()


def in_a_fork(target: Callable[[], None]) -> Any:
    """A process that starts at once, because everything is imported already."""
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    return process


def assert_same_files(folder: Path, undisturbed: Path) -> None:
    """Coreset and log byte by byte, and nothing else: no checkpoint, no temporary file."""
    expected = {path.name: path.read_bytes() for path in undisturbed.parent.iterdir()}
    assert set(expected) == {"c.safetensors", "c.log.jsonl"}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected


@needs_fork
def test_killed_at_random_moments(experts_folder: Path, undisturbed: Path, tmp_path: Path) -> None:
    """Killed before the first checkpoint and then, again and again, some time after one or two new ones."""
    moments = random.Random(0)
    command = arguments(experts_folder, tmp_path / "c.safetensors")
    kills = 0
    for checkpoints in (0, 1, 2, 1, 2):
        process = in_a_fork(lambda: call(command))
        wait_for_new_versions(tmp_path / "c.checkpoint", checkpoints, process)
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    call(command)
    assert kills >= 2
    assert_same_files(tmp_path, undisturbed)


def wait_for_new_versions(path: Path, count: int, process: Any) -> None:
    """Until ``path`` has been replaced ``count`` times, or the process has ended."""
    seen = {_inode(path)}
    while len(seen) <= count and process.exitcode is None:
        seen.add(_inode(path))
        time.sleep(0.001)


def _inode(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_written_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fifth checkpoint is killed when half of it is on the disk."""
    whole, calls = safetensors.torch.save_file, []

    def save(tensors: Any, path: Path, metadata: Any) -> None:
        whole(tensors, path, metadata)
        calls.append(path)
        if len(calls) == 5:
            os.truncate(path, path.stat().st_size // 2)
            die()

    monkeypatch.setattr(safetensors.torch, "save_file", save)


def checkpoint_not_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed when the second checkpoint is whole but does not have its name yet."""
    whole, calls = Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            die()
        return whole(self, target)

    monkeypatch.setattr(Path, "replace", replace)


def between_log_and_coreset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed when the construction is done but its coreset is not saved."""
    monkeypatch.setattr(Coreset, "save", lambda self, path, **_: die())


def before_the_checkpoint_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Construction, "discard_checkpoint", lambda self: die())


@needs_fork
@pytest.mark.parametrize(
    "fault",
    [
        half_written_checkpoint,
        checkpoint_not_renamed,
        between_log_and_coreset,
        before_the_checkpoint_is_discarded,
    ],
    ids=lambda fault: fault.__name__,
)
def test_killed_at_the_worst_moments(
    experts_folder: Path,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
) -> None:
    command = arguments(experts_folder, tmp_path / "c.safetensors")
    with monkeypatch.context() as patched:
        fault(patched)
        process = in_a_fork(lambda: call(command))
        process.join()
    assert process.exitcode == -signal.SIGKILL
    checkpoint = files.read_tensors(tmp_path / "c.checkpoint")[1]
    expected = {half_written_checkpoint: 40, checkpoint_not_renamed: 10}.get(fault, ITERATIONS)
    assert checkpoint["iteration"] == expected
    steps = count_steps(monkeypatch)
    call(command)
    assert len(steps) == ITERATIONS - checkpoint["iteration"], "what the checkpoint holds is not done again"
    assert_same_files(tmp_path, undisturbed)


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    steps: list[Any] = []
    whole = ContrastiveDivergence.loss

    def loss(self: ContrastiveDivergence, *rest: Any) -> Any:
        steps.append(self)
        return whole(self, *rest)

    monkeypatch.setattr(ContrastiveDivergence, "loss", loss)
    return steps


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_the_command_goes_on_after(
    how: signal.Signals,
    experts_folder: Path,
    undisturbed: Path,
    tmp_path: Path,
    start_bpc: Callable[..., subprocess.Popen[str]],
) -> None:
    """The real command in its own process. Asked to end: status 128 + signal, one sentence, the checkpoint kept."""
    folder = tmp_path / "out"
    command = arguments(experts_folder, folder / "c.safetensors")
    process = start_bpc(*command)
    wait_for(folder / "c.checkpoint", process)
    process.send_signal(how)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (folder / "c.checkpoint").exists()
    assert not (folder / "c.safetensors").exists()
    if how != signal.SIGKILL:
        assert process.returncode == 128 + how, errors
        assert output == ""
        assert "Traceback" not in errors
        assert errors.splitlines()[-1].startswith("Interrupted.")
        assert sorted(path.name for path in folder.iterdir()) == ["c.checkpoint"]
    else:
        assert process.returncode == -signal.SIGKILL
    call(command)
    assert_same_files(folder, undisturbed)


def test_a_killed_comparison_goes_on_to_the_same_table(
    tmp_path: Path, start_bpc: Callable[..., subprocess.Popen[str]]
) -> None:
    """Killed while its second method is under way; the first is not computed again."""

    def command(folder: Path) -> list[str]:
        return [
            *("compare", "--dataset", "digits", "--ipc", "1", "--methods", "cd,fkl", "--network", "convnet:width=4"),
            *("--expert-count", "1", "--epochs", "6", "--iterations", "12", "--chains", "2", "--sampling-steps", "40"),
            *("--device", "cpu", "--out", str(folder)),
        ]

    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    process = start_bpc(*command(killed))
    wait_for(killed / "fkl" / "seed0", process)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "fkl" / "seed0" / "metrics.json").exists()
    first = killed / "cd" / "seed0" / "metrics.json"
    written = first.stat().st_mtime_ns
    call(command(killed))
    assert first.stat().st_mtime_ns == written
    call(command(undisturbed))
    tables = [json.loads((folder / "comparison.json").read_text()) for folder in (killed, undisturbed)]
    assert [row["method"] for row in tables[0]["rows"]][1:] == ["cd", "fkl"]
    for mine, theirs in zip(*(table["rows"] for table in tables), strict=True):
        assert mine["metrics"] == theirs["metrics"]
        assert mine["failure"] is None
    for method in ("cd", "fkl"):
        coresets = [folder / method / "seed0" / "coreset.safetensors" for folder in (killed, undisturbed)]
        assert coresets[0].read_bytes() == coresets[1].read_bytes()
        assert not list((killed / method / "seed0").glob("*checkpoint*"))


def test_ctrl_c_while_a_posterior_is_sampled(
    bpc: Invoke, coreset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*rest: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Langevin, "step", interrupted)
    result = bpc("evaluate", coreset_file, "--out", "m.json", "--device", "cpu")
    assert result.exit_code == 130
    assert "Interrupted." in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []
