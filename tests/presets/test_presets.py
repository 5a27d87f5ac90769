"""Presets are documents: rules that are merged in their order, refused in one sentence, read back as written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import Invoke

import pseudocoresets as pc
from pseudocoresets._io.files import write_json
from pseudocoresets.presets import PRESETS, Before, Preset, preset
from pseudocoresets.workflows.plan import make_plan

RULES: list[dict[str, Any]] = [
    {"expert_count": 3, "learning": {"cd": {"learning_rate": 1.0, "momentum": 0.5}, "rkl": {"learning_rate": 5.0}}},
    {"when": {"ipc": [2, 10]}, "learning": {"cd": {"learning_rate": 2.0}}},
    {"when": {"ipc": [11, None]}, "learning": {"cd": {"learning_rate": {"times_ipc": 0.25}}}},
    {"when": {"dataset": ["svhn"], "ipc": [2, 10]}, "learning": {"cd": {"learning_rate": 3.0}}},
    {"when": {"other_than": ["digits"]}, "note": "larger images", "expert_count": 6},
    {"when": {"dataset": ["digits"]}, "before": {"bptt": [{"method": "cd", "learning": {"iterations": 7}}]}},
    {"when": {"dataset": ["digits"], "ipc": [10, 10]}, "before": {"bptt": []}},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json(tmp_path / "own.json", RULES)
    return tmp_path / "own.json"


@pytest.mark.parametrize(
    ("dataset", "ipc", "rate", "count"),
    [("digits", 1, 1.0, 3), ("digits", 10, 2.0, 3), ("svhn", 10, 3.0, 6), ("svhn", 1, 1.0, 6), ("mnist", 40, 10.0, 6)],
)
def test_rules_that_hold_are_merged_and_the_later_wins(
    file: Path, dataset: str, ipc: int, rate: float, count: int
) -> None:
    merged = preset(file, dataset, ipc)
    assert merged.learning == {"cd": {"learning_rate": rate, "momentum": 0.5}, "rkl": {"learning_rate": 5.0}}
    assert merged.expert_count == count


def test_constructions_before_are_replaced_not_joined(file: Path) -> None:
    assert preset(file, "digits", 1).before == {"bptt": (Before("cd", learning={"iterations": 7}),)}
    assert preset(file, "digits", 10).before == {"bptt": ()}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("dataset", "ipc"), [("digits", 1), ("fashion-mnist", 10), ("folder:own", 50)])
def test_a_preset_that_was_written_is_the_same_when_it_is_read(
    name: str, dataset: str, ipc: int, tmp_path: Path
) -> None:
    chosen = pc.preset(name, dataset=dataset, ipc=ipc)
    write_json(tmp_path / "saved.json", chosen.as_json())
    assert pc.preset(tmp_path / "saved.json", dataset="svhn", ipc=3) == chosen


def test_what_belongs_to_a_sampler_or_a_method_wins_over_what_is_for_all() -> None:
    chosen = Preset(
        sampling={"steps": 10, "step_size": 1.0},
        by_sampler={"sghmc": {"step_size": 0.5}},
        sampling_for={"bptt": {"mixed_kinds": True}},
    )
    assert chosen.sampling_by() == {"steps": 10, "step_size": 1.0, "sampler": "langevin"}
    own = {"steps": 10, "step_size": 0.5, "mixed_kinds": True, "sampler": "sghmc"}
    assert chosen.sampling_by("sghmc", "bptt") == own


def test_other_networks_are_sampled_as_the_preset_says_for_them() -> None:
    chosen = Preset(
        by_sampler={"psghmc": {"step_size": 0.04}, "sghmc": {"step_size": 0.01}},
        sampling_for={"bptt": {"sampler": "psghmc", "augment": False}, "bptt elsewhere": {"sampler": "sghmc"}},
    )
    assert chosen.sampling_by(method="bptt") == {"sampler": "psghmc", "augment": False, "step_size": 0.04}
    elsewhere = chosen.sampling_by(method="bptt", elsewhere=True)
    assert elsewhere == {"sampler": "sghmc", "augment": False, "step_size": 0.01}
    assert chosen.sampling_by("psghmc", "bptt", elsewhere=True)["step_size"] == 0.04
    assert chosen.sampling_by(method="cd", elsewhere=True)["sampler"] == "langevin"


def test_a_method_may_have_experts_and_a_protocol_of_its_own() -> None:
    pair = ("mtt", "wasserstein")
    paper = {name: make_plan(dataset="cifar10", method=name, ipc=50, protocol="point", preset="paper") for name in pair}
    trained = {name: (plan.expert_count, plan.experts.epochs) for name, plan in paper.items()}
    assert trained == {"mtt": (100, 50), "wasserstein": (6, 30)}
    assert [plan.sampling.learned_steps for plan in paper.values()] == [True, False]
    cold = make_plan(dataset="cifar10", method="mtt", ipc=50, preset="paper", expert_count=3)
    assert (cold.sampling.learned_steps, cold.expert_count) == (False, 3)


def best_for(dataset: str, ipc: int) -> tuple[Any, ...]:
    """What ``best`` says of its own method."""
    own = preset("best", dataset, ipc)
    return own.methods["bptt"], own.construction_for("bptt"), own.sampling_by(method="bptt"), own.before["bptt"]


@pytest.mark.parametrize("dataset", ["cifar10", "mnist", "digits", "folder:own"])
def test_sizes_and_data_sets_that_are_not_listed_have_the_best_settings_of_the_nearest(dataset: str) -> None:
    """A size has those of the next listed one; one image per class has the same for every data set."""
    assert best_for(dataset, 1) == best_for("cifar10", 1) != best_for(dataset, 2)
    assert best_for(dataset, 2) == best_for(dataset, 5) == best_for(dataset, 10) != best_for(dataset, 11)
    assert best_for(dataset, 11) == best_for(dataset, 20) == best_for(dataset, 50) == best_for(dataset, 500)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (5, "Rule 1 of the preset"),
        ([{}, {"leaning": {}}], "Rule 2 of the preset"),
        ({"leaning": {}}, "'leaning' is not one of"),
        ({"experts": [1]}, "'experts' is a list of 1 where object of values"),
        ({"experts": {"epochs": [1]}}, "'epochs' is a list of 1 where number"),
        ({"learning": {"cd": 5}}, "'cd' is 5 where object of values"),
        ({"expert_count": "six"}, "'expert_count' is the text 'six' where whole number should be"),
        ({"experts_for": {"cd": {"expert_count": 2.5}}}, "'expert_count' is 2.5 where whole number should be"),
        ({"calibration": 1.5}, "'calibration' is 1.5 where whole number should be"),
        ({"default_method": 5}, "'default_method' is 5 where text"),
        ({"before": {"bptt": {"method": "cd"}}}, "'bptt' is an object where list"),
        ({"before": {"bptt": [{"iterations": 5}]}}, "'bptt'[0] lacks 'method'"),
        ({"before": {"bptt": [{"method": "cd", "iterations": 5}]}}, "'iterations' is not one of learning, method"),
        ({"when": {"ipc": 5}}, "'ipc' is 5 where list of whole number, null, or whole number should be"),
        ({"when": {"dataset": "digits"}}, "'dataset' is the text 'digits' where list"),
        ({"when": {"class": 3}}, "'class' is not one of dataset, ipc, other_than"),
        ({"construction": {"learning_rate": {"times": 5}}}, "'learning_rate' is an object where number"),
        ({"construction": {"learningrate": 5}}, "The construction has no option 'learningrate'. Did you mean"),
        ({"construction": {"iterations": "many"}}, "'iterations' of the construction is a whole number; got 'many'"),
        ({"sampling": {"steps": 2.5}}, "'steps' of the sampling is a whole number; got 2.5"),
        ({"experts": {"epoch": 5}}, "The training of experts has no option 'epoch'"),
        ({"methods": {"cd": {"stpes": 5}}}, "The method 'cd' has no option 'stpes'"),
        ({"before": {"cd": [{"method": "wassersten"}]}}, "Did you mean 'wasserstein'"),
    ],
    ids=json.dumps,
)
def test_a_wrong_document_is_refused_in_one_sentence(bpc: Invoke, tmp_path: Path, document: Any, sentence: str) -> None:
    write_json(tmp_path / "wrong.json", document)
    result = bpc("run", "--preset", "wrong.json")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert sentence in line
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.json"]


@pytest.mark.parametrize("content", [None, "{", '{"experts": '])
def test_a_file_that_is_missing_or_no_json_is_refused(bpc: Invoke, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "own.json").write_text(content)
    result = bpc("run", "--preset", "own.json")
    assert result.exit_code == 2
    assert "own.json" in result.stderr


def test_a_copy_with_another_learning_rate_is_what_the_command_uses(
    bpc: Invoke, experts_folder: Path, tmp_path: Path
) -> None:
    quick = pc.preset("quick", dataset="digits", ipc=1).as_json()
    quick["construction"]["learning_rate"] = 3.0
    write_json(tmp_path / "own.json", quick)
    small = ("--experts", experts_folder, "--iterations", 2, "--set", "steps=2", "--set", "max_start_epoch=none")
    made = bpc("construct", "--preset", "own.json", "--out", "c.safetensors", "--no-augment", "--device", "cpu", *small)
    assert made.exit_code == 0, made.stderr
    configuration = pc.Coreset.load(tmp_path / "c.safetensors").configuration
    settings, method = configuration["settings"], configuration["method"]
    assert (settings["learning_rate"], settings["temperature"], settings["augment"]) == (3.0, 0.1, False)
    assert (method["expert_epochs"], method["max_start_epoch"]) == (4, None)


def test_a_preset_may_extend_another(tmp_path: Path) -> None:
    change = {"when": {"dataset": ["svhn"]}, "expert_count": 9}
    write_json(tmp_path / "own.json", [{"extends": "paper"}, change])
    assert preset(tmp_path / "own.json", "mnist", 10) == preset("paper", "mnist", 10)
    assert preset(tmp_path / "own.json", "svhn", 10) == replace(preset("paper", "svhn", 10), expert_count=9)
    write_json(tmp_path / "own.json", [{"extends": "papers"}])
    with pytest.raises(pc.InputError, match="extends"):
        preset(tmp_path / "own.json", "mnist", 10)


@pytest.mark.parametrize(("dataset", "ipc"), [("mnist", 1), ("cifar10", 1), ("cifar10", 10), ("svhn", 50)])
def test_a_method_is_sampled_as_it_was_built_and_not_as_the_preset_s_own(dataset: str, ipc: int) -> None:
    chosen = preset("paper", dataset, ipc)
    sampled = chosen.sampling_by(method="cd")
    assert (sampled["sampler"], sampled["step_size"], sampled.get("mixed_kinds", False)) == ("langevin", 0.1, False)
    own = chosen.sampling_by(method="bptt")
    assert own["sampler"] == ("langevin" if (dataset, ipc) == ("cifar10", 1) else "sghmc")
    assert ("momentum" in chosen.method_options("bptt")) == (own["sampler"] == "sghmc")
    assert own["mixed_kinds"] == chosen.construction_for("bptt")["mixed_kinds"]
    assert chosen.sampling_by("sghmc", "cd")["sampler"] == "sghmc"


def test_a_sampler_that_is_named_comes_with_its_own_step_size() -> None:
    def sampled(dataset: str, **given: Any) -> tuple[str, float]:
        sampling = make_plan(dataset=dataset, ipc=10, preset="paper", **given).sampling
        return sampling.schedule, sampling.step_size

    assert sampled("cifar10", sampler="langevin") == ("constant", 0.1)
    assert sampled("cifar10", sampler="sghmc") == ("constant", 0.0125)
    assert sampled("cifar10", sampler="langevin", sampling={"step_size": 0.02}) == ("constant", 0.02)
    assert sampled("svhn")[0] == "cyclical"
    assert sampled("svhn", sampler="langevin") == ("constant", 0.1)
