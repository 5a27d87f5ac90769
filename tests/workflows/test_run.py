"""Plans of two stages: the second construction starts from the coreset of the first, whatever interrupts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudocoresets.construction.loop import Construction
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.methods import BPTT, Loss, Wasserstein
from pseudocoresets.sources.experts import Experts, train_experts
from pseudocoresets.workflows.construct import WorkFiles, construct_plan
from pseudocoresets.workflows.place import workplace
from pseudocoresets.workflows.plan import Plan, Stage, make_plan
from pseudocoresets.workflows.run import run_plan

CPU = workplace("cpu")


@pytest.fixture(scope="module")
def experts(digits: Dataset) -> Experts:
    return train_experts(digits, "mlp:width=16", 2, epochs=6, device="cpu")


@pytest.mark.parametrize(
    ("dataset", "ipc", "method", "protocol", "needed"),
    [
        ("mnist", 10, None, "cold", False),
        ("mnist", 10, None, "expert", True),
        ("mnist", 1, None, "cold", True),
        ("mnist", 10, "cd", "cold", True),
        ("mnist", 10, "random", "cold", False),
    ],
)
def test_experts_are_trained_where_something_draws_from_them(
    dataset: str, ipc: int, method: str | None, protocol: str, needed: bool
) -> None:
    plan = make_plan(dataset=dataset, method=method, ipc=ipc, protocol=protocol, preset="paper")
    assert plan.needs_experts() is needed


def test_a_run_that_needs_no_experts_trains_none(tmp_path: Path) -> None:
    plan = replace(plan_of("random"), control_draws=1)
    few = replace(plan.sampling, steps=4, samples=2, chains=1)
    outcome = run_plan(replace(plan, sampling=few), tmp_path, place=CPU)
    assert not (tmp_path / "experts").exists()
    assert "experts" not in outcome.metrics["timings"]
    assert (tmp_path / "coreset.safetensors").exists()


def test_a_coreset_is_kept_when_its_evaluation_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pseudocoresets.workflows.run.judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan_of("random"), tmp_path, place=CPU)
    assert len(Coreset.load(tmp_path / "coreset.safetensors").x) == 10


def plan_of(method: str | None, preset: str = "paper", **settings: Any) -> Plan:
    return make_plan(dataset="digits", method=method, network="mlp:width=16", preset=preset, seed=3, **settings)


@pytest.fixture
def plan() -> Plan:
    options = {"steps": 3, "batch_size": 32, "burn_in": 0, "horizon": 12}
    full = plan_of("bptt", construction={"iterations": 4}, method_options=options)
    matching, _ = full.before
    settings = replace(matching.construction, iterations=3)
    return replace(full, before=(replace(matching, method_options={"steps": 4}, construction=settings),))


def made_in(folder: Path, plan: Plan, digits: Dataset, experts: Experts) -> Construction:
    folder.mkdir(exist_ok=True)
    return construct_plan(plan, digits, experts, WorkFiles.within(folder), CPU)


def test_a_preset_names_what_comes_before_and_gives_it_what_is_to_be_made(plan: Plan) -> None:
    (matching,) = plan.before
    assert matching.method == "wasserstein"
    assert (matching.construction.ipc, matching.construction.seed) == (1, 3)
    assert [stage.construction.seed for stage in plan.with_seed(5).before] == [5]
    assert plan_of("wasserstein").before == ()


def test_a_stage_may_learn_at_a_rate_of_its_own() -> None:
    plan = plan_of("bptt")
    assert [stage.method for stage in plan.before] == ["wasserstein", "bptt"]
    assert (plan.before[1].construction.learning_rate, plan.construction.learning_rate) == (0.01, 0.005)


def test_the_second_stage_starts_where_the_first_ended(
    plan: Plan, digits: Dataset, experts: Experts, tmp_path: Path
) -> None:
    made = made_in(tmp_path, plan, digits, experts)
    assert made.before is not None
    assert torch.equal(made.initial.images, made.before.coreset.images)
    assert not torch.equal(made.coreset.images, made.initial.images)
    assert made.coreset.method == "bptt"
    assert made.coreset.configuration["initial"]["method"] == "wasserstein"
    made.discard_checkpoint()
    assert list(tmp_path.iterdir()) == []


def test_a_third_stage_goes_on_from_the_second_and_leaves_no_file(
    plan: Plan, digits: Dataset, experts: Experts, tmp_path: Path
) -> None:
    between = Stage("bptt", {"steps": 3, "batch_size": 32, "horizon": 12}, replace(plan.construction, iterations=2))
    three = replace(plan, before=(*plan.before, between))
    made = made_in(tmp_path, three, digits, experts)
    assert made.before is not None
    assert made.before.before is not None
    assert torch.equal(made.initial.images, made.before.coreset.images)
    assert torch.equal(made.before.initial.images, made.before.before.coreset.images)
    origin = made.coreset.configuration["initial"]
    assert (origin["method"], origin["configuration"]["initial"]["method"]) == ("bptt", "wasserstein")
    again = made_in(tmp_path, three, digits, experts)
    assert torch.equal(again.coreset.images, made.coreset.images)
    again.discard_checkpoint()
    assert list(tmp_path.iterdir()) == []


def test_a_second_stage_that_was_interrupted_goes_on_without_the_first(
    plan: Plan, digits: Dataset, experts: Experts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made_in(tmp_path / "whole", plan, digits, experts)
    folder, first, second = tmp_path / "interrupted", Wasserstein.loss, BPTT.loss
    losses: list[str] = []

    def counted(self: Wasserstein, *details: Any) -> Loss:
        losses.append("wasserstein")
        return first(self, *details)

    def interrupted(self: BPTT, *details: Any) -> Loss:
        raise KeyboardInterrupt

    monkeypatch.setattr(Wasserstein, "loss", counted)
    monkeypatch.setattr(BPTT, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made_in(folder, plan, digits, experts)
    monkeypatch.setattr(BPTT, "loss", second)
    again = made_in(folder, plan, digits, experts)
    assert losses == ["wasserstein"] * 3
    assert torch.equal(again.coreset.images, whole.coreset.images)


def test_points_that_are_given_take_the_place_of_the_first_stage(
    plan: Plan, digits: Dataset, experts: Experts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = made_in(tmp_path / "given", plan, digits, experts).initial
    monkeypatch.delattr(Wasserstein, "loss")
    files = WorkFiles(tmp_path / "c.checkpoint", tmp_path / "rescue")
    made = construct_plan(plan, digits, experts, files, CPU, initial=given)
    assert made.before is None
    assert torch.equal(made.initial.images, given.images)


def test_the_method_of_a_preset_is_used_where_none_is_named() -> None:
    assert [plan_of(None, preset).method for preset in ("quick", "paper")] == ["cd", "bptt"]
