"""``bpc compare``: one table, saved and resumed, that survives the failure of a method."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from small import TINY
from typer.testing import CliRunner

from pseudocoresets._cli.app import build_app
from pseudocoresets._io.files import write_json
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.data import load_dataset
from pseudocoresets.evaluation import METRICS
from pseudocoresets.evaluation.paper import paper_figure
from pseudocoresets.methods import METHODS, ContrastiveDivergence
from pseudocoresets.sources.experts import train_experts
from pseudocoresets.workflows import cells
from pseudocoresets.workflows import compare as comparing
from pseudocoresets.workflows.cells import once
from pseudocoresets.workflows.place import workplace
from pseudocoresets.workflows.plan import Plan, make_plan


@dataclass(frozen=True)
class Failing(ContrastiveDivergence):
    """A method that fails in a way that nobody foresaw."""

    def loss(self, *arguments: Any) -> Any:
        raise RuntimeError("The kernel image is missing.\nMore lines of advice.")


class Hungry(ContrastiveDivergence):
    """A method that needs more memory than there is."""

    def loss(self, *arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB.")


@pytest.fixture
def method_registry() -> Any:
    """The registry, which gets its entries back after the test."""
    before = dict(METHODS._entries)
    yield METHODS
    METHODS._entries.clear()
    METHODS._entries.update(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """The real command, with a preset of the user's own with which a cell takes a moment."""
    preset = tmp_path_factory.mktemp("preset") / "tiny.json"
    write_json(preset, TINY.as_json())
    fixed = ["--dataset", "digits", "--network", "convnet:width=4", "--device", "cpu", "--preset", str(preset)]

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(build_app(), ["compare", *fixed, *arguments], catch_exceptions=False)

    return invoke


def plan_for(method: str, **settings: Any) -> Plan:
    return make_plan(**{"dataset": "digits", "method": method, "preset": TINY, **settings})


def rows_of(output: str) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in json.loads(output)["rows"]}


@pytest.fixture(scope="module")
def finished(run: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One comparison of two methods over two seeds."""
    folder = tmp_path_factory.mktemp("compare") / "out"
    result = run("--methods", "cd,random", "--seeds", "2", "--out", str(folder), "--json")
    assert result.exit_code == 0, result.output
    return folder, result


def test_json_has_the_control_the_gain_and_the_cost(finished: tuple[Path, Any]) -> None:
    _, result = finished
    rows = rows_of(result.stdout)
    assert list(rows) == [comparing.CONTROL, "cd", "random"]
    control, cd = rows[comparing.CONTROL], rows["cd"]
    for metric in METRICS:
        values = cd["metrics"][metric]["values"]
        assert len(values) == 2
        assert cd["metrics"][metric]["mean"] == pytest.approx(sum(values) / 2)
        assert cd["gain"][metric] == pytest.approx(cd["metrics"][metric]["mean"] - control["metrics"][metric]["mean"])
    assert cd["seconds_per_iteration"] > 0
    assert cd["seconds"] == pytest.approx(2 * cd["seconds_per_iteration"], rel=1e-6)
    assert cd["peak_memory"] > 0
    assert rows["random"]["seconds_per_iteration"] is None
    assert all(row["failure"] is None for row in rows.values())


def test_one_bar_shows_the_whole_comparison(finished: tuple[Path, Any]) -> None:
    _, result = finished
    lines = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines if "done in" in line] == ["the whole comparison"]


def test_table_is_saved_as_json_and_markdown(finished: tuple[Path, Any]) -> None:
    folder, result = finished
    assert json.loads((folder / "comparison.json").read_text()) == json.loads(result.stdout)
    lines = (folder / "comparison.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 3
    assert {line.count("|") for line in table} == {len(comparing.COLUMNS) + 1}
    assert "temperature" in lines[-1]
    assert "prior scale" in lines[-1]


def test_finished_cells_are_not_computed_again(
    run: Callable[..., Any], finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = finished

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished cell was computed again")

    monkeypatch.setattr(comparing, "construct_plan", forbidden)
    monkeypatch.setattr(comparing, "judge_control", forbidden)
    again = run("--methods", "cd,random", "--seeds", "2", "--out", str(folder), "--json")
    assert json.loads(again.stdout) == json.loads(before.stdout)


def test_other_settings_and_more_seeds_compute_only_what_is_missing(
    run: Callable[..., Any], finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = finished
    made = []
    real = comparing.construct_plan

    def counting(plan: Any, *arguments: Any) -> Any:
        made.append((plan.method, plan.construction.seed))
        return real(plan, *arguments)

    monkeypatch.setattr(comparing, "construct_plan", counting)
    more = run("--methods", "cd", "--seeds", "3", "--out", str(folder), "--json")
    assert made == [("cd", 2)]
    first_two = rows_of(before.stdout)["cd"]["metrics"]["nll"]["values"]
    assert rows_of(more.stdout)["cd"]["metrics"]["nll"]["values"][:2] == first_two
    made.clear()
    run("--methods", "cd", "--seeds", "1", "--out", str(folder), "--temperature", "0.5", "--json")
    assert made == [("cd", 0)]


def write_picture(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), level).save(path)


def test_cells_of_other_images_or_experts_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of a plan stay the same throughout; what they name is known by its content."""
    made: list[str] = []

    def recorded(name: str) -> None:
        real = getattr(comparing, name)
        monkeypatch.setattr(comparing, name, lambda plan, *rest: (made.append(plan.method), real(plan, *rest))[1])

    recorded("construct_plan")
    recorded("judge_control")
    images = tmp_path / "images"
    for part, index, (label, name) in itertools.product(("train", "test"), range(3), enumerate(("ant", "bee"))):
        write_picture(images / part / name / f"{index}.png", 50 * label + index)
    names = {"dataset": f"folder:{images}", "network": "convnet:width=4,depth=1"}
    plans = {name: plan_for(name, **names) for name in ("cd", "random")}

    def compared(experts: str) -> list[str]:
        made.clear()
        comparing.run_comparison(plans, [0], tmp_path / "out", experts_dir=tmp_path / experts, place=workplace("cpu"))
        return list(made)

    everything = ["random", "cd", "random"]
    assert compared("first") == everything
    assert compared("first") == []
    write_picture(images / "train" / "ant" / "0.png", 200)
    assert compared("second") == everything
    write_picture(images / "test" / "bee" / "0.png", 200)
    assert compared("second") == everything
    retrained = train_experts(load_dataset(names["dataset"]), names["network"], 1, epochs=3, out=tmp_path / "third")
    monkeypatch.setattr(comparing, "experts_for", lambda *_: retrained)
    assert compared("third") == ["cd"]


def test_cells_of_another_version_of_the_library_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = {"plan": 1}
    assert once(tmp_path, identity, lambda: {"found": 1})["found"] == 1
    assert once(tmp_path, identity, lambda: {"found": 2})["found"] == 1
    monkeypatch.setattr(cells, "library_versions", lambda: {"pseudocoresets": "another"})
    assert once(tmp_path, identity, lambda: {"found": 3})["found"] == 3


def test_a_failing_method_is_a_row_and_the_others_go_on(
    run: Callable[..., Any], finished: tuple[Path, Any], tmp_path: Path, method_registry: Any
) -> None:
    method_registry.add("hungry", Hungry)
    method_registry.add("failing", Failing)
    folder = finished[0]
    out = tmp_path / "out"
    arguments = ["--methods", "failing,hungry,random", "--out", str(out), "--experts", str(folder / "experts")]
    result = run(*arguments)
    assert result.exit_code == 3
    assert "failing: seed 0 failed: RuntimeError: The kernel image is missing." in " ".join(result.stdout.split())
    assert "Traceback" not in result.output
    rows = {row["method"]: row for row in json.loads((out / "comparison.json").read_text())["rows"]}
    assert rows["hungry"]["metrics"] is rows["failing"]["metrics"] is None
    assert "memory" in rows["hungry"]["failure"]
    assert "More lines" not in rows["failing"]["failure"]
    assert rows["random"]["metrics"]["accuracy"]["mean"] > 0
    assert "Traceback" in (out / "failing" / "seed0" / "failure.txt").read_text()
    method_registry.add("failing", ContrastiveDivergence)
    healed = rows_of(run(*arguments, "--json").stdout)
    assert healed["failing"]["failure"] is None
    assert not (out / "failing" / "seed0" / "failure.txt").exists()


def test_a_seed_that_fails_does_not_take_the_others_with_it(
    run: Callable[..., Any], finished: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = comparing.construct_plan

    def diverges_at_seed_1(plan: Any, *arguments: Any) -> Any:
        if plan.construction.seed == 1:
            raise DivergenceError("The energy diverged; lower the learning rate.")
        return real(plan, *arguments)

    monkeypatch.setattr(comparing, "construct_plan", diverges_at_seed_1)
    out = tmp_path / "out"
    experts = str(finished[0] / "experts")
    row = rows_of(run("--methods", "cd", "--seeds", "2", "--out", str(out), "--experts", experts, "--json").stdout)[
        "cd"
    ]
    assert len(row["metrics"]["nll"]["values"]) == 1
    assert row["failure"] == "seed 1 failed: The energy diverged; lower the learning rate."


def test_an_interrupt_stops_the_comparison_and_leaves_what_was_done(
    finished: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    plans = {name: plan_for(name, network="convnet:width=4") for name in ("random", "cd")}
    real = comparing.construct_plan
    monkeypatch.setattr(
        comparing, "construct_plan", lambda plan, *rest: (interrupted if plan.method == "cd" else real)(plan, *rest)
    )
    with pytest.raises(KeyboardInterrupt):
        comparing.run_comparison(plans, [0], out, experts_dir=finished[0] / "experts", place=workplace("cpu"))
    rows = json.loads((out / "comparison.json").read_text())["rows"]
    assert [row["method"] for row in rows] == [comparing.CONTROL, "random"]


def test_methods_that_are_sampled_in_other_ways_have_controls_of_their_own(
    finished: tuple[Path, Any], tmp_path: Path
) -> None:
    names = ("random", "cd", "other")
    plans = {name: plan_for("random", network="convnet:width=4") for name in names}
    plans["cd"] = replace(plans["cd"], sampling=replace(plans["cd"].sampling, temperature=50.0))
    table = comparing.run_comparison(plans, [0], tmp_path / "out", place=workplace("cpu"))
    control, _, hot, own, _ = table.rows
    assert [row.method for row in table.rows] == [control.method, "random", hot.method, "cd", "other"]
    assert "cd" in hot.method
    assert hot.metrics != control.metrics
    assert own.metrics is not None and hot.metrics is not None and own.gain is not None
    assert own.gain["nll"] == pytest.approx(own.metrics["nll"].mean - hot.metrics["nll"].mean)


def test_paper_figures_stand_beside_our_own() -> None:
    cell = {"ensemble": dict.fromkeys(METRICS, 0.5)}
    plan = plan_for("fkl", dataset="cifar10", ipc=10)
    row = comparing._row("fkl", plan, {0: cell}, {0: cell})
    assert row.paper_accuracy == paper_figure("cifar10", 10, "fkl", "accuracy")
    assert row.paper_accuracy is not None
    assert f"{100 * row.paper_accuracy:.1f}, {row.paper_nll:.2f}" in row.cells()


@pytest.mark.parametrize(
    ("given", "construction", "sampling"),
    [
        (["--temperature", "0.005"], 0.005, 0.005),
        (["--temperature", "0.005", "--construction-temperature", "0.004"], 0.004, 0.005),
    ],
)
def test_temperature_prior_and_weights_reach_construction_and_sampling(
    run: Callable[..., Any],
    given: list[str],
    construction: float,
    sampling: float,
    tmp_path: Path,
    finished: tuple[Path, Any],
) -> None:
    experts = str(finished[0] / "experts")
    arguments = [*given, "--prior-scale", "0.3", "--weights", "unit", "--experts", experts]
    result = run("--methods", "cd", "--out", str(tmp_path / "out"), *arguments, "--json")
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "out" / "cd" / "seed0" / "metrics.json").read_text())["plan"]
    assert stored["construction"]["temperature"] == construction
    assert stored["sampling"]["temperature"] == sampling
    assert stored["construction"]["prior_scale"] == stored["sampling"]["prior_scale"] == 0.3
    assert stored["construction"]["weights"] == "unit"
    assert json.loads(result.stdout)["construction"]["weights"] == "unit"


def test_unit_weights_at_a_temperature_that_makes_chains_noise_are_refused(
    run: Callable[..., Any], finished: tuple[Path, Any], tmp_path: Path
) -> None:
    experts = str(finished[0] / "experts")
    arguments = ("--weights", "unit", "--experts", experts, "--out", str(tmp_path / "out"), "--json")
    for temperature in ("1", "0.1"):
        result = run("--methods", "cd", *arguments, "--temperature", temperature)
        assert result.exit_code == 2
        assert "chains are noise; give a temperature of at most 0.0077" in result.stderr
