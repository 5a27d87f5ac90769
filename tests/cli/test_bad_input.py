"""Bad input from the command line: status 2, one sentence, no traceback, nothing half-written."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Invoke

import pseudocoresets as pc
from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets.models.networks import build_network
from pseudocoresets.sources.experts import ExpertSettings, ExpertStore
from pseudocoresets.sources.experts.store import TrainedOn

RATES = ("learning-rate", "label-learning-rate", "weight-learning-rate", "prior-scale", "temperature", "averaging")
COUNTS = ("ipc", "iterations", "chains", "sampling-steps", "samples", "epochs", "expert-batch-size")


def refused(bpc: Invoke, folder: Path, *arguments: Any) -> str:
    """The one sentence with which the command refuses, having written nothing."""
    before = files_below(folder)
    result = bpc(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("Error: ")
    assert lines[0].endswith((".", "?"))
    assert files_below(folder) == before
    return lines[0]


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


# Names.


@pytest.mark.parametrize(
    ("arguments", "wrong", "nearest"),
    [
        (("run", "--dataset", "digit"), "data set named 'digit'", "digits"),
        (("run", "--dataset", "cifar-10"), "data set named 'cifar-10'", "cifar10"),
        (("compare", "--dataset", "digist"), "data set named 'digist'", "digits"),
        (("experts", "--dataset", "minst"), "data set named 'minst'", "mnist"),
        (("data", "info", "fashion"), "data set named 'fashion'", "fashion-mnist"),
        (("run", "--method", "ccd"), "method named 'ccd'", "cd"),
        (("run", "--method", "randm"), "method named 'randm'", "random"),
        (("compare", "--methods", "cd,randon"), "method named 'randon'", "random"),
        (("run", "--sampler", "langvin"), "sampler named 'langvin'", "langevin"),
        (("compare", "--sampler", "hcm"), "sampler named 'hcm'", "hmc"),
        (("run", "--schedule", "cyclic"), "schedule named 'cyclic'", "cyclical"),
        (("run", "--network", "convnet3"), "network named 'convnet3'", "convnet"),
        (("experts", "--network", "resnet"), "network named 'resnet'", "resnet18"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    bpc: Invoke, tmp_path: Path, arguments: tuple[str, ...], wrong: str, nearest: str
) -> None:
    sentence = refused(bpc, tmp_path, *arguments)
    assert wrong in sentence
    assert f"Did you mean '{nearest}'?" in sentence


@pytest.mark.parametrize(("method", "named"), [("cd", "cd"), ("bptt", "wasserstein")])
def test_construct_says_who_needs_experts(bpc: Invoke, tmp_path: Path, method: str, named: str) -> None:
    sentence = refused(bpc, tmp_path, "construct", "--out", "new/c.safetensors", "--method", method)
    assert f"The method '{named}'" in sentence
    assert "--experts" in sentence


@pytest.mark.parametrize(
    ("command", "option", "value", "nearest"),
    [
        ("construct", "--dataset", "digitz", "digits"),
        ("construct", "--method", "fkll", "fkl"),
        ("construct", "--network", "mlpp", "mlp"),
        ("evaluate", "--dataset", "digitz", "digits"),
        ("evaluate", "--sampler", "sghcm", "sghmc"),
        ("evaluate", "--network", "convnt", "convnet"),
    ],
)
def test_so_is_one_beside_files(
    bpc: Invoke, tmp_path: Path, experts_folder: Path, coreset_file: Path, command: str, option: str, value: str,
    nearest: str,
) -> None:  # fmt: skip
    arguments = writing(command, "new/c.safetensors", experts_folder, coreset_file)
    assert f"Did you mean '{nearest}'?" in refused(bpc, tmp_path, *arguments, option, value)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--protocol", "warm", "cold, point, expert; got 'warm'"),
        ("--preset", "slow", "or a JSON file; got 'slow'"),
        ("--device", "abacus", "auto, cpu or cuda; got 'abacus'"),
        ("--network", "mlp:depht=2", "does not take these options"),
        ("--network", "mlp:deep", "key=value"),
        ("--iterations", "0", "'iterations' is a number from 1"),
        ("--learning-rate", "-1", "'learning_rate' is a number from 1e-30"),
        ("--learning-rate", "1e-320", "got 1e-320"),
        ("--learning-rate", "nan", "got nan"),
        ("--momentum", "1", "'momentum' is a number from 0 to below 1"),
        ("--averaging", "1", "'averaging' is a number from 0 to below 1"),
        ("--annealing", "1.5", "'annealing' is a number from 0 to 1"),
        ("--optimiser", "lion", "sgd, adam; got 'lion'"),
        ("--epochs", "0", "'epochs' is a number from 1"),
        ("--epochs", "3", "fewer than expert_epochs = 4 of the method 'cd'; raise --epochs"),
        ("--chains", "0", "'chains' is a number from 1"),
        ("--sampler", "langevin:step_size=1e308", "'step_size' of the sampler 'langevin' is a number"),
        ("--sampler", "langevin:step_size=-1", "step size must be positive"),
        ("--initialisation", "nan", "no selection named 'nan'"),
        ("--sampling-steps", "10", "do not fit"),
        ("--set", "expert_epochs", "--set NAME=VALUE"),
        ("--set", "stesp=1", "Did you mean 'steps'"),
        ("--set", "steps=2.5", "whole number"),
        ("--set", "steps=0", "steps >= 1"),
        ("--set", "steps=none", "The option 'steps' of the method 'cd' is a whole number; got None"),
        ("--set", "step_size=abc", "The option 'step_size' of the method 'cd' is a number; got 'abc'"),
        ("--set", "max_start_epoch=soon", "a whole number or none; got 'soon'"),
        ("--set", "kernel=hcm", "Did you mean 'hmc'"),
        *((f"--{name}", value, f"'{name.replace('-', '_')}'") for name in RATES for value in ("1e308", "inf", "-inf")),
        *((f"--{name}", "1000000000000", "got 1000000000000") for name in COUNTS),
        ("--sampling-step-size", "nan", "'step_size' (--sampling-step-size)"),
        ("--temperature", "nan", "'temperature'"),
        ("--prior-scale", "1e-300", "'prior_scale'"),
        ("--set", "steps=1000000000000", "'steps' of the method 'cd' is a number"),
        ("--set", "max_start_epoch=-1", "'max_start_epoch' of the method 'cd' is a number from 0"),
        ("--set", "step_size=nan", "'step_size' of the method 'cd' is a number"),
        ("--set", "step_size=" + "9" * 400, "characters"),
    ],
)
def test_run_refuses_settings_before_it_begins(
    bpc: Invoke, tmp_path: Path, option: str, value: str, sentence: str
) -> None:
    assert sentence in refused(bpc, tmp_path, "run", option, value)


def test_real_images_have_no_options_to_set(bpc: Invoke, tmp_path: Path) -> None:
    sentence = refused(bpc, tmp_path, "run", "--method", "random", "--set", "a=b")
    assert "The method 'random' has no options; got 'a'." in sentence
    assert "selection" in refused(bpc, tmp_path, "run", "--method", "random", "--initialisation", "nan")
    assert "device" in refused(bpc, tmp_path, "compare", "--devices", ",")


# What no name and no value may be.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", ""), "is empty"),
        (("run", "--out", ""), "is empty"),
        (("share", "c", "--licence="), "is empty"),
        (("doctor", "--data-dir", "a\nb"), "'a\\nb' has a line break"),
        (("data", "list", "--data-dir", "a\x1b[31mb"), "control code"),
        (("run", "--seed", "9" * 5000), "(5000 characters)' is longer than"),
        (("evaluate", "x" * 5000), "(5000 characters)' is longer than"),
        (("--precision", "double", "methods"), "auto, float32; got 'double'"),
        (("compare", "--methods", ","), "',' names nothing"),
        (("posterior", "--data", "wine", "--target", "y"), "'wine' has its own target"),
        (("posterior", "--data", "wine", "--sizes", "9" * 400), "(400 characters)"),
        (("bench", "--methods", "dm", "--ipc", "9" * 400), "from 1 to 1,000,000"),
        (("reproduce", "list", "--datasets", ", ,"), "names nothing"),
        (("reproduce", "list", "--ipc", "0"), "1, 10, 50 images per class; got 0"),
        (("reproduce", "list", "--only", "dm:7"), "got 7"),
        (("compare", "--ray", "é" * 300), "Ray"),
    ],
)
def test_arguments_that_nothing_could_be_are_refused(
    bpc: Invoke, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(bpc, tmp_path, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("share",),
        ("report",),
        ("export",),
        ("evaluate",),
        ("privacy", "audit"),
        ("doctor", "--data-dir"),
        ("data", "list", "--data-dir"),
        ("run", "--preset"),
        ("construct", "--out", "c.safetensors", "--initial"),
        ("construct", "--out", "c.safetensors", "--data-from"),
        ("posterior", "--data"),
    ],
    ids=" ".join,
)
def test_names_that_no_file_can_have_are_refused(bpc: Invoke, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert "xxx" in refused(bpc, tmp_path, *arguments, "x" * 300)


# Images per class.


@pytest.mark.parametrize("ipc", [0, -1])
@pytest.mark.parametrize("command", ["run", "construct", "compare"])
def test_impossible_numbers_of_images_are_refused(
    bpc: Invoke, tmp_path: Path, experts_folder: Path, command: str, ipc: int
) -> None:
    extra = ("--experts", experts_folder, "--out", "c.safetensors") if command == "construct" else ()
    sentence = refused(bpc, tmp_path, command, "--ipc", ipc, *extra)
    assert f"got {ipc}" in sentence
    assert "'ipc' is a number from 1" in sentence


# Coreset files.


def truncated(source: Path, out: Path) -> None:
    out.write_bytes(source.read_bytes()[:-200])


def not_safetensors(source: Path, out: Path) -> None:
    out.write_text("images, labels and weights")


def empty(source: Path, out: Path) -> None:
    out.write_bytes(b"")


def of_another_version(source: Path, out: Path) -> None:
    tensors, document = read_tensors(source)
    write_tensors(out, tensors, document | {"version": 99})


def of_another_kind(source: Path, out: Path) -> None:
    write_tensors(out, {"snapshots": torch.zeros(2, 3)}, {"expert": 0})


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (truncated, "not a complete safetensors file"),
        (not_safetensors, "not a complete safetensors file"),
        (empty, "not a complete safetensors file"),
        (of_another_version, "format version 99, but this library reads versions 1 to 4"),
        (of_another_kind, "not a coreset file"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("command", ["evaluate", "show", "construct"])
def test_files_that_are_no_coresets_are_refused(
    bpc: Invoke,
    tmp_path: Path,
    coreset_file: Path,
    experts_folder: Path,
    command: str,
    damage: Callable[[Path, Path], None],
    sentence: str,
) -> None:
    bad = tmp_path / "bad.safetensors"
    damage(coreset_file, bad)
    arguments = {
        "evaluate": (bad,),
        "show": (bad, "--out", "c.png"),
        "construct": ("--experts", experts_folder, "--out", "c.safetensors", "--initial", bad),
    }[command]
    found = refused(bpc, tmp_path, command, *arguments)
    assert sentence in found
    assert "bad.safetensors" in found


@pytest.mark.parametrize("command", ["evaluate", "show", "report"])
def test_missing_files_are_refused(bpc: Invoke, tmp_path: Path, command: str) -> None:
    assert "missing" in refused(bpc, tmp_path, command, "missing")


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_a_coreset_of_another_shape_is_refused_before_anything_is_fetched(
    bpc: Invoke, tmp_path: Path, coreset_file: Path, dataset: str
) -> None:
    sentence = refused(bpc, tmp_path, "evaluate", coreset_file, "--dataset", dataset)
    assert "(1, 8, 8) in 10 classes" in sentence
    assert "choose the data set that it was made from" in sentence


def test_a_start_of_another_shape_is_refused(
    bpc: Invoke, tmp_path: Path, coreset_file: Path, experts_folder: Path
) -> None:
    tensors, document = read_tensors(coreset_file)
    write_tensors(tmp_path / "other.safetensors", tensors | {"images": torch.zeros(10, 1, 28, 28)}, document)
    sentence = refused(
        *(bpc, tmp_path, "construct", "--experts", experts_folder),
        *("--out", "c.safetensors", "--initial", "other.safetensors"),
    )
    assert "(1, 28, 28)" in sentence


def test_rows_have_no_network_to_be_judged_by(bpc: Invoke, tmp_path: Path) -> None:
    pc.Coreset(torch.rand(5, 3), torch.rand(5), torch.ones(5), 40, "table", "giga").save(tmp_path / "rows.safetensors")
    words = ("evaluate", "rows.safetensors", "--dataset", "digits", "--network", "convnet")
    assert "rows of a table, not images" in refused(bpc, tmp_path, *words)


# Experts.


def test_experts_that_cannot_be_used_are_refused(bpc: Invoke, tmp_path: Path, experts_folder: Path) -> None:
    out = ("--out", "c.safetensors")
    assert "no experts in 'missing'" in refused(bpc, tmp_path, "construct", "--experts", "missing", *out)
    (tmp_path / "empty").mkdir()
    assert "no experts in 'empty'" in refused(bpc, tmp_path, "construct", "--experts", "empty", *out)
    ExpertStore.create_or_open(
        "begun", build_network("mlp", (1, 8, 8), 10), TrainedOn("digits", 32 * "0"), ExpertSettings()
    )
    assert "'begun' is empty" in refused(bpc, tmp_path, "construct", "--experts", "begun", *out)
    sentence = refused(bpc, tmp_path, "construct", "--experts", experts_folder, "--network", "convnet", *out)
    assert "of the network 'mlp:depth=1,width=32', not 'convnet'" in sentence
    sentence = refused(bpc, tmp_path, "run", "--experts", experts_folder, "--network", "convnet")
    assert "trained with another network" in sentence
    sentence = refused(bpc, tmp_path, "experts", "--out", experts_folder, "--network", "convnet")
    assert "trained with another network" in sentence


def test_experts_of_another_data_set_are_refused(
    bpc: Invoke, tmp_path: Path, experts_folder: Path, coreset_file: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in experts_folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    description = json.loads((other / "store.json").read_text())
    (other / "store.json").write_text(json.dumps(description | {"dataset": "mnist", "data": 32 * "0"}))
    for command in (("construct", "--out", "c.safetensors"), ("evaluate", coreset_file, "--protocol", "expert")):
        assert "trained on other data ('mnist')" in refused(bpc, tmp_path, *command, "--experts", "other")


def test_the_expert_protocol_needs_experts_of_the_network(
    bpc: Invoke, tmp_path: Path, coreset_file: Path, experts_folder: Path
) -> None:
    assert "give their folder" in refused(bpc, tmp_path, "evaluate", coreset_file, "--protocol", "expert")
    sentence = refused(
        *(bpc, tmp_path, "evaluate", coreset_file, "--protocol", "expert"),
        *("--experts", experts_folder, "--network", "convnet"),
    )
    assert "another network" in sentence


# Places that cannot be written.

WORK = (
    "pseudocoresets.sources.experts.train._Trainer.train",
    "pseudocoresets.workflows.audit.audit",
    "pseudocoresets._cli.reproduce.compute",
    "pseudocoresets._cli.bench.bench_methods",
    "pseudocoresets._cli.bench.bench_networks",
    "pseudocoresets.methods.ContrastiveDivergence.loss",
    "pseudocoresets.workflows.evaluate.sample_posterior",
    "pseudocoresets._cli.posterior.run_study",
    "pseudocoresets._cli.bench.run_bench",
)
WRITING_FOLDERS = ("experts", "run", "compare", "posterior", "privacy audit", "share", "reproduce")
WRITING_FILES = (
    *("construct", "evaluate", "show", "compact", "report", "export", "data info"),
    *("bench", "bench --methods", "bench --networks", "evaluate --predictions"),
)


@pytest.mark.parametrize("place", ["file/below", "file", "/proc/below"])
@pytest.mark.parametrize("command", [*WRITING_FOLDERS, *WRITING_FILES])
def test_places_that_cannot_be_written_are_refused_before_the_work(
    bpc: Invoke,
    tmp_path: Path,
    experts_folder: Path,
    coreset_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    place: str,
) -> None:
    """Below a file, or where not even root may create anything. Long work would be an error of its own here."""
    (tmp_path / "file").write_text("a file where a folder is wanted")
    for work in WORK:
        monkeypatch.setattr(work, _too_late)
    out = place if command in WRITING_FOLDERS else f"{place}/out.png"
    sentence = refused(bpc, tmp_path, *writing(command, out, experts_folder, coreset_file))
    assert "Choose a folder you may write to." in sentence


@pytest.mark.parametrize("kind", ["/dev/null", "pipe", "socket", "link to a device"])
@pytest.mark.parametrize("command", [*WRITING_FOLDERS, *WRITING_FILES])
def test_only_files_and_folders_are_written(
    bpc: Invoke, tmp_path: Path, experts_folder: Path, coreset_file: Path, command: str, kind: str
) -> None:
    """A rename over them would destroy them for everybody, where the user may."""
    place = Path(kind) if kind.startswith("/") else tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
            bound.bind("place")
    elif kind.startswith("link"):
        place.symlink_to("/dev/zero")
    before = place.lstat()
    result = bpc(*writing(command, place, experts_folder, coreset_file))
    assert result.exit_code == 2
    assert "is a device, a pipe or a socket" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)


def writing(command: str, out: str | Path, experts: Path, coreset: Path) -> tuple[Any, ...]:
    """The command that writes to ``out``."""
    name = command.partition(" --")[0]
    more: dict[str, tuple[Any, ...]] = {
        "construct": ("--experts", experts),
        "report": (".",),
        "data info": ("digits",),
        "reproduce": ("main", "--smoke"),
        "bench --methods": ("--methods", "dm"),
        "bench --networks": ("--networks",),
        "compact": (coreset, out),
        "evaluate --predictions": (coreset, "--predictions", out),
        **dict.fromkeys(("evaluate", "show", "privacy audit", "share", "export"), (coreset,)),
    }
    written = () if command in ("compact", "evaluate --predictions") else ("--out", out)
    return (*name.split(), *more.get(command, ()), *written)


def _too_late(*values: Any, **options: Any) -> None:
    raise AssertionError("the work began before the output was tried")


def test_a_folder_in_place_of_a_file_is_refused(bpc: Invoke, tmp_path: Path, experts_folder: Path) -> None:
    (tmp_path / "folder").mkdir()
    sentence = refused(bpc, tmp_path, "construct", "--experts", experts_folder, "--out", "folder")
    assert "give the name of a file" in sentence


# Divergence.


@pytest.mark.parametrize("rate", ["1e30", "1e6"])
def test_a_diverging_construction_keeps_the_last_good_coreset(
    bpc: Invoke, tmp_path: Path, experts_folder: Path, digits: pc.Dataset, rate: str
) -> None:
    command = ("construct", "--experts", experts_folder, "--out", "c.safetensors", "--device", "cpu")
    quick = ("--iterations", 20, "--set", "steps=2", "--set", "expert_epochs=2")
    result = bpc(*command, *quick, "--learning-rate", rate)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    stopped, sentence = result.stderr.splitlines()
    assert stopped == "learning the coreset by cd: stopped at 10/20"
    assert sentence.startswith("Error: The energy diverged by iteration 10")
    assert "lower the learning rate of the images" in sentence
    assert "'c.last-good.safetensors'" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["c.last-good.safetensors"]
    kept = pc.Coreset.load(tmp_path / "c.last-good.safetensors")
    assert bool(torch.isfinite(kept.images).all())
    again = bpc(*command, *quick, "--learning-rate", "1", "--initial", "c.last-good.safetensors")
    assert again.exit_code == 0, again.stderr


def test_diverging_experts_are_not_stored(bpc: Invoke, tmp_path: Path) -> None:
    result = bpc("experts", "--learning-rate", "1e30", "--epochs", 1, "--network", "mlp", "--out", "e")
    assert result.exit_code == 2
    assert "lower it" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert [path.name for path in (tmp_path / "e").iterdir()] == ["store.json"]


def test_a_damaged_checkpoint_is_refused(bpc: Invoke, tmp_path: Path, experts_folder: Path) -> None:
    (tmp_path / "c.checkpoint").write_text("not a checkpoint")
    sentence = refused(bpc, tmp_path, "construct", "--experts", experts_folder, "--out", "c.safetensors")
    assert "c.checkpoint" in sentence


# What the parser itself refuses.


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--ipc", "one"),
        ("run", "--seed", "1.5"),
        ("run", "--learning-rate", "fast"),
        ("run", "--seed", "9" * 400),
        ("run", "--expert-count", "1000000000000"),
        ("run", "--expert-count", "0"),
        ("experts", "--count", "-" + "9" * 400),
        ("experts", "--population", "0"),
        ("experts", "--clipping", "nan"),
        ("experts", "--clipping", "0"),
        ("evaluate", "c", "--calibration", "9" * 400),
        ("compare", "--seeds", "0"),
        ("reproduce", "list", "--budget", "inf"),
        ("reproduce", "list", "--budget", "nan"),
        ("reproduce", "list", "--iterations", "1000000000000"),
        ("privacy", "audit", "c", "--images", "0"),
        ("privacy", "audit", "c", "--epochs", "0"),
        ("posterior", "--draws", "0"),
        ("posterior", "--dimension", "0"),
        ("posterior", "--seeds", "0"),
        ("experts", "--population", "1000000000000"),
        ("compare", "--seeds", "1000000000000"),
        ("posterior", "--points", "1000000000000"),
        ("posterior", "--draws", "1000000000000"),
        ("posterior", "--prior-scale", "1e308"),
        ("construct", "--out", "c", "--checkpoint-seconds", "nan"),
        ("run", "--nonsense"),
        ("construct",),
        ("evaluate",),
        ("constrct",),
        ("data", "lst"),
    ],
    ids=" ".join,
)
def test_usage_errors_have_status_two_and_no_traceback(bpc: Invoke, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = bpc(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "Usage: " in result.stderr
    assert list(tmp_path.iterdir()) == []
