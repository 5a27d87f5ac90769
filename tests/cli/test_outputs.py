"""Outputs: one process at a time, nothing replaced unasked, and nothing begun that cannot be finished."""

from __future__ import annotations

import json
import os
import socket
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small import Invoke

import pseudocoresets as pc
from pseudocoresets._io.files import only_writer, remove_leftovers, replacing, write_text
from pseudocoresets.core.errors import InputError, PassedOverWarning
from pseudocoresets.data import full_name
from pseudocoresets.methods import ContrastiveDivergence
from pseudocoresets.workflows.estimate import FASTEST
from pseudocoresets.workflows.provenance import typed_command

NETWORK = ("--network", "mlp:depth=1,width=4")
QUICK = ("--iterations", 3, "--set", "steps=2", "--set", "expert_epochs=2", "--device", "cpu")
SAMPLING = ("--chains", 2, "--sampling-steps", 20, "--samples", 2)


def sentence(result: Any, status: int = 2) -> str:
    """The one line that a command ends with."""
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    return last


# Two at once.


def test_a_second_process_on_an_output_gets_one_sentence(bpc: Invoke, tmp_path: Path, experts_folder: Path) -> None:
    commands: dict[str, tuple[Any, ...]] = {
        "c.safetensors": ("construct", "--experts", experts_folder, *QUICK, "--out", "c.safetensors"),
        "run": ("run", *NETWORK, "--out", "run"),
        "table": ("compare", *NETWORK, "--methods", "random", "--out", "table"),
        "experts": ("experts", *NETWORK, "--out", "experts"),
        "study": ("posterior", "--data", "synthetic", "--points", 60, "--cache", "cache", "--out", "study"),
    }
    for out, command in commands.items():
        with only_writer(out):
            assert "Another process is writing" in sentence(bpc(*command))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["store.json"]
    assert bpc(*commands["c.safetensors"]).exit_code == 0
    assert not [path.name for path in tmp_path.rglob(".*")]


def test_a_lock_goes_with_its_holder_and_leaves_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "new" / ".out.lock"
    with only_writer(tmp_path / "new" / "out"):
        assert lock.exists()
    assert list(tmp_path.iterdir()) == []
    if (child := os.fork()) == 0:
        with only_writer(tmp_path / "out"):
            os._exit(0)  # as a killed process: nothing is cleaned up
    os.waitpid(child, 0)
    assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]
    with only_writer(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_only_what_dead_writers_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    (tmp_path / ".a.txt.killed.part").write_text("half")
    with replacing(path) as temporary:
        assert not (tmp_path / ".a.txt.killed.part").exists()
        temporary.write_text("live")
        remove_leftovers(path)
        write_text(path, "of another writer")
        assert temporary.exists()
    assert path.read_text() == "live"
    assert list(tmp_path.iterdir()) == [path]


# Nothing is replaced unasked.


def test_a_finished_result_of_another_request_is_kept(bpc: Invoke, tmp_path: Path, experts_folder: Path) -> None:
    command = ("construct", "--experts", experts_folder, *QUICK, "--out", "c.safetensors")
    assert bpc(*command).exit_code == 0
    first = (tmp_path / "c.safetensors").read_bytes()
    assert "with ipc 1, not 2" in sentence(bpc(*command, "--ipc", 2))
    assert "with settings.seed 0, not 5" in sentence(bpc(*command, "--seed", 5))
    assert "with options.steps" in sentence(bpc(*command, "--set", "steps=3"))
    assert (tmp_path / "c.safetensors").read_bytes() == first
    assert bpc(*command).exit_code == 0, "the same request may be repeated"
    assert (tmp_path / "c.safetensors").read_bytes() == first
    assert bpc(*command, "--ipc", 2, "--force").exit_code == 0
    assert len(pc.Coreset.load(tmp_path / "c.safetensors")) == 20


def test_runs_and_tables_of_another_request_are_kept(bpc: Invoke, tmp_path: Path) -> None:
    run = ("run", "--method", "random", *NETWORK, *SAMPLING, "--out", "run")
    table = ("compare", "--methods", "random", *NETWORK, *SAMPLING, "--out", "table")
    for command, file in ((run, "run/metrics.json"), (table, "table/comparison.json")):
        assert bpc(*command).exit_code == 0
        before = (tmp_path / file).read_bytes()
        assert "ipc 1, not 2" in sentence(bpc(*command, "--ipc", 2))
        assert (tmp_path / file).read_bytes() == before


def test_a_setting_that_an_older_record_lacks_has_its_default(bpc: Invoke, tmp_path: Path) -> None:
    """So a finished run stays finished after an upgrade that brings settings."""
    run = ("run", "--method", "random", *NETWORK, *SAMPLING, "--out", "run")
    assert bpc(*run).exit_code == 0
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    del config["construction"]["formation"], config["before"], config["sampling"]["start_noise"]
    path.write_text(json.dumps(config))
    assert bpc(*run).exit_code == 0
    path.write_text(json.dumps(config))
    assert "construction.formation 1, not 2" in sentence(bpc(*run, "--formation", 2))


def test_no_file_is_written_over_what_is_read(bpc: Invoke, tmp_path: Path, coreset: pc.Coreset) -> None:
    coreset.save(tmp_path / "c.safetensors")
    before = (tmp_path / "c.safetensors").read_bytes()
    (tmp_path / "link").symlink_to("c.safetensors")
    for command in (("compact", "c.safetensors", "c.safetensors"), ("show", "c.safetensors", "--out", "link")):
        assert "is the file that is read" in sentence(bpc(*command))
    assert (tmp_path / "c.safetensors").read_bytes() == before


# Names.


@pytest.mark.parametrize("name", ["x" * 240, "é" * 120, "x" * 300 + "/run", "a\udcff"])
def test_names_that_could_not_be_kept_are_refused_before_the_work(bpc: Invoke, tmp_path: Path, name: str) -> None:
    assert "Cannot write" in sentence(bpc("run", *NETWORK, "--out", f"runs/{name}"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a\nb", "a\x1bb"])
def test_control_codes_stay_out_of_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="control code"):
        write_text(tmp_path / name, "")


def test_a_command_of_any_bytes_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bpc", "run", "--data-dir", "a\udcff b"])
    assert typed_command() == "bpc run --data-dir 'a\\udcff b'"


def test_a_folder_of_images_has_one_name_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path / "images")
    assert full_name("folder:.") == full_name(f"folder:{tmp_path}/images") == f"folder:{tmp_path}/images"
    assert full_name("folder:../images?size=8") == f"folder:{tmp_path}/images?size=8"
    assert full_name("digits") == "digits"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="There is no folder"):
        pc.load_dataset(f"folder:{tmp_path}/loop")
    with pytest.raises(InputError, match="from 1 to"):
        full_name("folder:x?size=" + "9" * 5000)


def test_what_is_no_file_among_images_is_counted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("L", (4, 4), 100 * number).save(tmp_path / name / f"{number}.png")
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "a" / "loop.png").symlink_to(tmp_path / "a" / "loop.png")
    (tmp_path / "a" / "zero.png").symlink_to("/dev/zero")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "a" / "s.png"))
    bound.close()
    with pytest.warns(PassedOverWarning, match="4 entries of"):
        assert len(pc.load_dataset(f"folder:{tmp_path}").train) == 2


@pytest.mark.parametrize(
    "sampler", ["langevin:step_size=nan", "sghmc:momentum_decay=1e99", "hmc:steps=x", "langevin:a=1"]
)
def test_options_of_a_sampler_have_types_and_ranges(bpc: Invoke, coreset_file: Path, sampler: str) -> None:
    assert "sampler" in sentence(bpc("evaluate", coreset_file, "--sampler", sampler, *SAMPLING))


# Before the work, and when memory ends.


def test_what_cannot_fit_is_refused_before_the_work(
    bpc: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "GiB of memory" in sentence(bpc("run", "--chains", 100_000, "--network", "mlp:width=4000"))
    assert "experts take" in sentence(bpc("experts", "--count", 999_999, "--epochs", 100_000, *NETWORK, "--out", "e"))
    assert not (tmp_path / "e").exists()
    with monkeypatch.context() as slow:
        slow.setitem(FASTEST, "cpu", 1.0)
        assert "years on any such device" in sentence(bpc("run", "--method", "random", *NETWORK, "--device", "cpu"))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**6, 0, 10**6))
    assert "experts take" in sentence(bpc("run", "--expert-count", 10_000, *NETWORK))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_that_runs_out_on_the_host_leaves_the_checkpoint(
    bpc: Invoke, tmp_path: Path, experts_folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    whole = ContrastiveDivergence.loss
    calls: list[int] = []

    def loss(*values: Any) -> Any:
        calls.append(1)
        if len(calls) > 15:
            raise error
        return whole(*values)

    monkeypatch.setattr(ContrastiveDivergence, "loss", loss)
    command = ("construct", "--experts", experts_folder, *QUICK, "--iterations", 30, "--out", "c.safetensors")
    assert "too little memory for an iteration" in sentence(bpc(*command))
    assert [path.name for path in tmp_path.iterdir()] == ["c.checkpoint"]
    monkeypatch.setattr(ContrastiveDivergence, "loss", whole)
    assert bpc(*command).exit_code == 0


# Errors.


def test_debug_shows_where_an_error_comes_from(bpc: Invoke) -> None:
    assert "Traceback" not in bpc("show", "missing").stderr
    shown = bpc("--debug", "show", "missing")
    assert shown.exit_code == 2
    assert "Traceback" in shown.stderr
    assert shown.stderr.splitlines()[-1] == "Error: There is no file 'missing'."


def test_what_was_not_foreseen_is_one_line_too(
    bpc: Invoke, coreset_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*values: Any, **options: Any) -> None:
        raise KeyError("first\nsecond")

    monkeypatch.setattr(pc.Coreset, "show", fail)
    assert "This should not have happened (KeyError: " in sentence(bpc("show", coreset_file, "--out", "c.png"), 1)
