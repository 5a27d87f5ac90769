"""Presets: what they choose, and that the results page tells of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pseudocoresets.commands.planning import make_plan
from pseudocoresets.construct import ConstructionSettings, build_method
from pseudocoresets.pipeline import Plan

RECORD = Path(__file__).parent.parent / "benchmarks/results/paper_cells.json"


def plan_of(dataset: str, ipc: int, preset: str = "paper", sampler: str | None = None, **settings: Any) -> Plan:
    return make_plan(
        dataset=dataset,
        method=None,
        network="convnet",
        ipc=ipc,
        protocol="cold",
        sampler=sampler,
        preset=preset,
        seed=3,
        **settings,
    )


def recorded_constructions() -> list[dict[str, Any]]:
    return [row for row in json.loads(RECORD.read_text())["rows"] if row.get("label") == "bptt"]


@pytest.mark.parametrize(
    "row", recorded_constructions(), ids=lambda row: f"{row['dataset']}-{row['ipc']}-{row['seed']}"
)
def test_the_paper_preset_is_what_the_recorded_coresets_were_made_with(row: dict[str, Any]) -> None:
    """Options that the record leaves out are the method's defaults."""
    plan = plan_of(row["dataset"], row["ipc"]).with_seed(row["seed"])
    recorded = row["plan"]
    assert build_method("bptt", plan.method_options) == build_method("bptt", recorded["method_options"])
    assert plan.construction == ConstructionSettings(**recorded["construction"])
    assert bool(plan.before) == (row["initial"] is not None)


def test_all_twelve_cells_are_recorded_twice() -> None:
    cells = [(row["dataset"], row["ipc"]) for row in recorded_constructions()]
    assert len(set(cells)) == 12
    assert all(cells.count(cell) == 2 for cell in cells)


@pytest.mark.parametrize(("ipc", "sampler"), [(1, "langevin"), (10, "sghmc")])
def test_the_paper_preset_samples_as_its_chains_move(ipc: int, sampler: str) -> None:
    plan = plan_of("cifar10", ipc)
    assert plan.sampling.sampler == sampler
    assert ("momentum" in plan.method_options) == (sampler == "sghmc")


def test_a_sampler_that_is_named_comes_with_its_own_step_size() -> None:
    steps = {name: plan_of("cifar10", 10, sampler=name).sampling.step_size for name in ("langevin", "sghmc")}
    assert steps == {"langevin": 0.1, "sghmc": 0.0125}
    given = plan_of("cifar10", 10, sampler="langevin", sampling={"step_size": 0.02})
    assert (given.sampling.sampler, given.sampling.step_size) == ("langevin", 0.02)


def test_the_quick_preset_samples_by_langevin() -> None:
    assert plan_of("digits", 1, "quick").sampling.sampler == "langevin"
