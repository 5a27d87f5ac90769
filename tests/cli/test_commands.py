"""The command line as it is documented: every command, its help, its JSON and its files."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from small import NETWORK, Invoke
from typer.main import get_command

import pseudocoresets as pc
from pseudocoresets._cli.app import COMMANDS, build_app
from pseudocoresets._cli.options import PANELS
from pseudocoresets.backends import PlainBackend
from pseudocoresets.evaluation import METRICS
from pseudocoresets.methods import METHODS
from pseudocoresets.methods.selection import SELECTIONS

FEW_STEPS = ("--chains", 5, "--sampling-steps", 40, "--device", "cpu")
SMALL = ("--network", "mlp:depth=1,width=8", "--expert-count", 2, "--epochs", 5, "--iterations", 3, *FEW_STEPS)


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and its path, such as ("data", "list")."""
    command = command or get_command(build_app())
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))
    else:
        yield path, command


NAMES = [path for path, _ in commands()]


def test_every_documented_command_is_there() -> None:
    first = {path[0] for path in NAMES}
    assert first >= {"run", "data", "experts", "construct", "evaluate", "compare", "show", "report"}
    assert {("data", "list"), ("data", "info"), ("data", "fetch")} <= set(NAMES)


@pytest.mark.parametrize("path", NAMES, ids=" ".join)
def test_help_has_an_example(bpc: Invoke, path: tuple[str, ...]) -> None:
    result = bpc(*path, "--help")
    assert result.exit_code == 0
    assert f"Example: bpc {' '.join(path)}" in re.sub(r"\s+", " ", result.stdout)


@pytest.mark.parametrize("name", ["run", "construct", "evaluate", "compare"])
def test_help_is_in_groups_with_the_common_ones_first(bpc: Invoke, name: str) -> None:
    shown = bpc(name, "--help").stdout
    groups = re.findall(r"^╭─ ([\w ]+) ─", shown, re.MULTILINE)
    assert [group for group in PANELS if group in groups] == [group for group in groups if group != "Arguments"]
    assert {"Data", "Method", "Output"} <= set(groups) and "Options" not in groups
    assert shown.index("─ Data ─") < shown.index("─ Method ─") < shown.index("─ Output ─")


@pytest.mark.parametrize("path", NAMES, ids=" ".join)
def test_options_mean_the_same_everywhere(path: tuple[str, ...]) -> None:
    command = dict(commands())[path]
    options = {name for parameter in command.params for name in parameter.opts}
    assert "--json" in options
    if path in {("run",), ("experts",), ("construct",), ("evaluate",), ("compare",)}:
        assert {"--seed", "--device", "--data-dir", "--dataset", "--network", "--preset"} <= options
    if path in {("run",), ("evaluate",), ("compare",)}:
        assert {"--protocol", "--sampler", "--chains"} <= options
    if path in {("run",), ("construct",), ("compare",)}:
        assert {"--ipc", "--experts", "--iterations", "--out"} <= options


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_the_first_of_its_own_help(name: str) -> None:
    """The line is known before the command is imported, and so is written twice."""
    command: Any = get_command(build_app())
    assert command.commands[name].help.splitlines()[0] == COMMANDS[name] == command.get_command(None, name).help


@pytest.mark.parametrize("path", [(), ("data",), *NAMES], ids=" ".join)
def test_h_is_short_for_help(bpc: Invoke, path: tuple[str, ...]) -> None:
    assert bpc(*path, "-h").stdout == bpc(*path, "--help").stdout != ""


def test_the_version_is_said(bpc: Invoke) -> None:
    result = bpc("--version")
    assert (result.exit_code, result.stdout) == (0, f"bpc {metadata.version('pseudocoresets')}\n")


def test_help_fills_the_lines_of_a_terminal(bpc: Invoke) -> None:
    assert "fails is reported in the table, and the status is then 3." in bpc("posterior", "--help").stdout


@pytest.mark.parametrize("words", ["--help", "--version", "", "data list", "data --help", "show --help", "constrct"])
def test_a_short_answer_does_not_wait_for_torch(words: str) -> None:
    """Which takes seconds; the rest is some tenths of one."""
    program = (
        "import sys; from pseudocoresets.__main__ import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True)
    assert result.returncode in (0, 2)
    assert "Traceback" not in result.stderr


def test_a_shell_completes_commands_and_options() -> None:
    for words, answer in (("bpc co", "construct compare compact"), ("bpc construct --ex", "--experts")):
        asked = {"_BPC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-m", "pseudocoresets"]
        result = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)
        assert result.stdout.split() == answer.split()


def test_without_arguments_help_is_shown(bpc: Invoke) -> None:
    assert "construct" in bpc().output


def assert_summary(summary: dict[str, Any], runs: int) -> None:
    assert set(summary) == {"mean", "std", "values"}
    values = torch.tensor(summary["values"], dtype=torch.float64)
    assert len(values) == runs
    assert summary["mean"] == pytest.approx(float(values.mean()))
    assert summary["std"] == pytest.approx(float(values.std()), abs=1e-12)


def assert_metrics(document: dict[str, Any], protocol: str, runs: int, control_draws: int = 5) -> None:
    """The documented schema of metrics.json, with the control beside the coreset and the gain over it."""
    assert document["protocol"] == document["control"]["protocol"] == protocol
    assert (document["method"], document["dataset"], document["ipc"]) == ("cd", "digits", 1)
    for name in METRICS:
        assert_summary(document[name], runs)
        assert_summary(document["control"][name], runs * control_draws)
        assert document["gain"][name] == pytest.approx(document[name]["mean"] - document["control"][name]["mean"])
    for accuracy in document["accuracy"]["values"] + document["control"]["accuracy"]["values"]:
        correct = 497 * accuracy
        assert correct == pytest.approx(round(correct), abs=1e-3), "a fraction of 497 test images"
        assert correct <= 497
    assert document["seconds"] > 0
    assert document["posterior"]["chains"] == runs


def test_how_the_points_are_learned_is_recorded_in_the_file(bpc: Invoke, experts_folder: Path, tmp_path: Path) -> None:
    made = bpc(
        *("construct", "--experts", experts_folder, "--out", "c.safetensors", "--iterations", 2, "--set", "steps=2"),
        *("--optimiser", "adam", "--learning-rate", 0.01, "--averaging", 0.9, "--annealing", 0.5, "--mixed-kinds"),
        *("--device", "cpu"),
    )
    assert made.exit_code == 0, made.stderr
    settings = pc.Coreset.load(tmp_path / "c.safetensors").configuration["settings"]
    assert (settings["optimiser"], settings["learning_rate"], settings["averaging"]) == ("adam", 0.01, 0.9)
    assert settings["annealing"] == 0.5
    assert settings["mixed_kinds"] is True


def test_construct_evaluate_and_show_work_as_documented(
    bpc: Invoke, experts_folder: Path, digits: pc.Dataset, tmp_path: Path
) -> None:
    made = bpc(
        *("construct", "--dataset", "digits", "--ipc", 1, "--experts", experts_folder, "--out", "c.safetensors"),
        *("--iterations", 20, "--set", "steps=3", "--device", "cpu", "--json"),
    )
    assert made.exit_code == 0, made.stderr
    answer = json.loads(made.stdout)
    assert (answer["coreset"], answer["points"]) == ("c.safetensors", 10)
    assert answer["last"]["iteration"] == 20
    coreset = pc.Coreset.load(tmp_path / "c.safetensors")
    assert coreset.images.shape == (10, *digits.shape)
    log = [json.loads(line) for line in (tmp_path / "c.log.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in log] == list(range(1, 21))
    assert {"loss", "positive", "negative"} <= set(log[0])

    own = ("--samples", 7, "--sampling-step-size", 0.07)
    judged = bpc("evaluate", "c.safetensors", "--protocol", "cold", "--json", *FEW_STEPS, *own)
    assert judged.exit_code == 0, judged.stderr
    document = json.loads(judged.stdout)
    assert_metrics(document, "cold", runs=5)
    assert document["network"] == NETWORK
    assert (document["posterior"]["samples"], document["posterior"]["step_size"]) == (7, 0.07)

    shown = bpc("show", "c.safetensors", "--out", "c.png")
    assert shown.exit_code == 0, shown.stderr
    with Image.open(tmp_path / "c.png") as picture:
        assert min(picture.size) > 80
    assert {path.name for path in tmp_path.iterdir()} == {"c.safetensors", "c.log.jsonl", "c.png"}


@pytest.mark.parametrize("protocol", ["point", "expert"])
def test_the_other_protocols_stand_beside_their_control(
    bpc: Invoke, coreset_file: Path, experts_folder: Path, tmp_path: Path, protocol: str
) -> None:
    judged = bpc(
        "evaluate", coreset_file, "--protocol", protocol, "--experts", experts_folder, *FEW_STEPS, "--out", "m.json"
    )
    assert judged.exit_code == 0, judged.stderr
    assert_metrics(json.loads((tmp_path / "m.json").read_text()), protocol, runs=5)
    assert "control" in judged.stdout
    assert protocol in judged.stdout


def test_how_many_controls_is_for_the_user_to_say(bpc: Invoke, coreset_file: Path) -> None:
    none, two = (bpc("evaluate", coreset_file, "--controls", n, "--json", *FEW_STEPS) for n in (0, 2))
    assert not {"control", "gain"} & set(json.loads(none.stdout))
    document = json.loads(two.stdout)
    assert len(document["control"]["accuracy"]["values"]) == 2 * len(document["accuracy"]["values"])
    shown = bpc("evaluate", coreset_file, "--controls", 0, *FEW_STEPS)
    assert shown.exit_code == 0 and "control" not in shown.stdout


def test_real_images_are_a_method_too(bpc: Invoke, digits: pc.Dataset, tmp_path: Path) -> None:
    made = bpc("construct", "--method", "random", "--ipc", 2, "--out", "r.safetensors")
    assert made.exit_code == 0, made.stderr
    pixels = (pc.Coreset.load(tmp_path / "r.safetensors").to_pixels() * 255).round().to(torch.uint8)
    real = {image.numpy().tobytes() for image in digits.train.images}
    assert len(pixels) == 20
    assert all(image.numpy().tobytes() in real for image in pixels)


def test_a_coreset_goes_on_through_its_chain_without_experts(bpc: Invoke, tmp_path: Path) -> None:
    assert bpc("construct", "--method", "random", "--network", "mlp:width=8", "--out", "r.safetensors").exit_code == 0
    small = ("--network", "mlp:width=8", "--iterations", 2, "--set", "steps=2", "--set", "horizon=6")
    made = bpc("construct", "--method", "bptt", "--initial", "r.safetensors", "--out", "c.safetensors", *small)
    assert made.exit_code == 0, made.stderr
    coreset = pc.Coreset.load(tmp_path / "c.safetensors")
    assert coreset.method == "bptt"
    assert coreset.configuration["initial"]["method"] == "random"


def test_compare_works_as_documented(bpc: Invoke) -> None:
    command = ("compare", "--dataset", "digits", "--ipc", 1, "--methods", "cd,random", "--json", *SMALL)
    result = bpc(*command)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["dataset"], document["ipc"], document["protocol"]) == ("digits", 1, "cold")
    control, *rows = document["rows"]
    assert "control" in control["method"]
    assert control["gain"]["accuracy"] == 0
    assert [row["method"] for row in rows] == ["cd", "random"]
    for row in rows:
        assert row["failure"] is None
        for name in METRICS:
            gain = row["metrics"][name]["mean"] - control["metrics"][name]["mean"]
            assert row["gain"][name] == pytest.approx(gain)


def test_run_does_the_whole_job(bpc: Invoke, tmp_path: Path) -> None:
    result = bpc("run", "--out", "runs/small", *SMALL)
    assert result.exit_code == 0, result.stderr
    assert "random real images (control)" in result.stdout
    assert "cd coreset" in result.stdout
    folder = tmp_path / "runs" / "small"
    written = {path.name for path in folder.iterdir()}
    expected = {"config.json", "coreset.safetensors", "metrics.json", "log.jsonl", "coreset.png", "report.html"}
    assert expected <= written
    assert not any(name.endswith((".part", ".checkpoint")) for name in written)
    assert_metrics(json.loads((folder / "metrics.json").read_text()), "cold", runs=5)
    config = json.loads((folder / "config.json").read_text())
    assert (config["dataset"], config["method"], config["construction"]["ipc"]) == ("digits", "cd", 1)
    assert len((folder / "log.jsonl").read_text().splitlines()) == 3
    along = json.loads((folder / "metrics.json").read_text())["along"]
    assert [each["iteration"] for each in along] == [0, 1, 2, 3]
    assert all(0 <= each["accuracy"] <= 1 for each in along)
    assert "Warning about the coreset: The chains disagree" in result.stderr
    following = [shlex.split(line) for line in result.stdout.split("Next:")[1].splitlines() if "bpc" in line]
    for program, name, *words in following:
        assert program == "bpc"
        get_command(build_app()).commands[name].make_context(name, words)
    assert len(following) == 3

    again = bpc("run", "--out", "runs/small", "--json", *SMALL)
    first, second = (json.loads((folder / "metrics.json").read_text()), json.loads(again.stdout))
    assert first["accuracy"] == second["accuracy"], "the same settings give the same answer"

    page = bpc("report", "runs/small", "--json")
    assert page.exit_code == 0, page.stderr
    assert json.loads(page.stdout) == {"report": str(Path("runs/small/report.html"))}

    shown = bpc("show", "runs/small", "--json")
    assert json.loads(shown.stdout) == {"picture": str(Path("runs/small/coreset.png")), "images": 10}
    assert "holds no coreset.safetensors" in bpc("show", "runs").stderr


def test_experts_are_added_to_a_store(bpc: Invoke, tmp_path: Path) -> None:
    small = ("--network", NETWORK, "--epochs", 1, "--out", "experts", "--device", "cpu", "--json")
    assert json.loads(bpc("experts", "--count", 1, *small).stdout)["experts"] == 1
    first = (tmp_path / "experts" / "expert-0000.safetensors").read_bytes()
    result = bpc("experts", "--count", 2, *small)
    answer = json.loads(result.stdout)
    assert (answer["experts"], answer["epochs"], answer["folder"]) == (2, 1, "experts")
    assert (tmp_path / "experts" / "expert-0000.safetensors").read_bytes() == first
    assert re.search(r"experts on digits: done in [\d.]+ s", result.stderr)


def test_data_are_listed(bpc: Invoke) -> None:
    names = [each["name"] for each in json.loads(bpc("data", "list", "--json").stdout)]
    assert {"digits", "mnist", "fashion-mnist", "svhn", "cifar10", "cifar100", "tiny-imagenet"} <= set(names)


def test_the_command_is_a_process_with_an_exit_status(start_bpc: Callable[..., subprocess.Popen[str]]) -> None:
    """Plain lines on a pipe, one sentence, status 2, no traceback."""
    process = start_bpc("evaluate", "missing.safetensors")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert output == ""
    assert errors == "Error: There is no file 'missing.safetensors'.\n"


def test_an_option_of_the_last_version_works_with_one_sentence_on_standard_error(
    bpc: Invoke, experts_folder: Path, tmp_path: Path
) -> None:
    small = ("--experts", experts_folder, "--iterations", 2, "--set", "steps=2", "--device", "cpu")
    made = bpc("construct", "--out", "c.safetensors", "--set", "ahead=1", *small)
    assert made.exit_code == 0, made.stderr
    warned = [line for line in made.stderr.splitlines() if line.startswith("Warning: ")]
    assert warned == ["Warning: Options of the method 'cd' have new names: write expert_epochs=1 instead of ahead=1."]
    assert pc.Coreset.load(tmp_path / "c.safetensors").configuration["method"]["expert_epochs"] == 1


def test_methods_lists_all_with_their_options(bpc: Invoke) -> None:
    facts = {each["name"]: each for each in json.loads(bpc("methods", "--json").stdout)}
    assert set(facts) == {*METHODS, *SELECTIONS}
    assert all(each["what"] for each in facts.values())
    assert facts["cd"]["what"].startswith("Contrastive divergence")
    assert facts["cd"]["options"]["steps"] == pc.methods.ContrastiveDivergence().steps
    text = bpc("methods").stdout
    assert all(f"{name}: " in text for name in facts)


def test_doctor_says_what_is_here(bpc: Invoke) -> None:
    facts = json.loads(bpc("doctor", "--json").stdout)
    assert facts["packages"]["torch"] == metadata.version("torch")
    assert "digits" in facts["data sets here"]
    assert facts["fast path"].startswith("yes" if torch.cuda.is_available() else "no: it needs a GPU")
    assert f"torch {facts['packages']['torch']}" in bpc("doctor").stdout


def test_doctor_says_yes_of_a_backend_that_derives_from_the_plain_one(
    bpc: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faster(PlainBackend):
        """As the fused one does."""

    monkeypatch.setattr("pseudocoresets.workflows.place.choose_backend", lambda *_, **__: Faster())
    assert json.loads(bpc("doctor", "--json").stdout)["fast path"] == "yes"


def test_a_coreset_is_judged_on_corrupted_images(bpc: Invoke, coreset_file: Path) -> None:
    few = ("--chains", 1, "--sampling-steps", 30, "--samples", 1, "--json", "--device", "cpu")
    clean = json.loads(bpc("evaluate", coreset_file, *few).stdout)
    blurred = json.loads(bpc("evaluate", coreset_file, "--corruption", "zoom_blur", "--severity", 5, *few).stdout)
    assert (blurred["corruption"], blurred["severity"]) == ("zoom_blur", 5)
    assert blurred["accuracy"]["mean"] < clean["accuracy"]["mean"]
    wrong = bpc("evaluate", coreset_file, "--corruption", "zoom_blurr")
    assert wrong.exit_code == 2
    assert "zoom_blur" in wrong.stderr
