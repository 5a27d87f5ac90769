"""Presets: what they choose, and that the results page tells of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pseudocoresets.commands.planning import make_plan
from pseudocoresets.construct import ConstructionSettings, build_method
from pseudocoresets.pipeline import Plan

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RECORD = BENCHMARKS / "results/paper_cells.json"
JOBS = BENCHMARKS / "jobs/paper.json"
WAYS_TO_SAMPLE = {"sampler": None, "step_size": None, "mixed_kinds": False, "schedule": "constant"}
"""What decides how chains move, and what it was before it could be chosen."""


def plan_of(
    dataset: str,
    ipc: int,
    preset: str = "paper",
    method: str | None = None,
    sampler: str | None = None,
    **settings: Any,
) -> Plan:
    return make_plan(
        dataset=dataset,
        method=method,
        network="convnet",
        ipc=ipc,
        protocol="cold",
        sampler=sampler,
        preset=preset,
        seed=3,
        **settings,
    )


@cache
def recorded_rows() -> list[dict[str, Any]]:
    return [row for row in json.loads(RECORD.read_text())["rows"] if "label" in row]


def recorded_constructions() -> list[dict[str, Any]]:
    return [row for row in recorded_rows() if row["label"] == "bptt"]


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


@cache
def jobs_by_cell() -> dict[tuple[str, int, str], dict[str, Any]]:
    return {(job["dataset"], job["ipc"], job.get("label", job["method"])): job for job in json.loads(JOBS.read_text())}


def way_to_sample(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings.get(name, former) for name, former in WAYS_TO_SAMPLE.items()}


def plan_of_job(job: dict[str, Any], seed: int) -> Plan:
    settings = {"construction": job.get("construction"), "method_options": job.get("options")}
    plan = plan_of(job["dataset"], job["ipc"], method=job["method"], **settings).with_seed(seed)
    iterations = job.get("iterations", plan.construction.iterations)
    return replace(plan, construction=replace(plan.construction, iterations=iterations))


@pytest.mark.parametrize(
    "row", recorded_rows(), ids=lambda row: f"{row['dataset']}-{row['ipc']}-{row['label']}-{row['seed']}"
)
def test_the_jobs_make_what_is_recorded(row: dict[str, Any]) -> None:
    job = jobs_by_cell()[row["dataset"], row["ipc"], row["label"]]
    recorded = row["plan"]
    plan = plan_of_job(job, row["seed"])
    assert row["seed"] in job.get("seeds", [0])
    assert job.get("initial") == row["initial"]
    ways = [way_to_sample(asdict(plan.sampling) | change) for change in job.get("sampling", [{}])]
    assert way_to_sample(recorded["sampling"] | row["chosen"]["sampling"]) in ways
    if row["method"] != "random":
        assert plan.construction == ConstructionSettings(**recorded["construction"])
        made = build_method(row["method"], recorded["method_options"])
        assert build_method(row["method"], plan.method_options) == made


@pytest.mark.parametrize(
    "row", recorded_constructions(), ids=lambda row: f"{row['dataset']}-{row['ipc']}-{row['seed']}"
)
def test_the_paper_preset_puts_the_recorded_constructions_before(row: dict[str, Any]) -> None:
    """The chain of rows that a recorded coreset started from, and the preset's stages, are the same."""
    rows = {(at["dataset"], at["ipc"], at["label"], at["seed"]): at for at in recorded_rows()}
    chain: list[dict[str, Any]] = []
    while row["initial"] is not None:
        row = rows[row["dataset"], row["ipc"], row["initial"], row["seed"]]
        chain.insert(0, row)
    stages = list(plan_of(row["dataset"], row["ipc"]).with_seed(row["seed"]).before)
    assert len(stages) == len(chain)
    for stage, made in zip(stages, chain, strict=True):
        assert stage.method == made["method"]
        options = build_method(made["method"], made["plan"]["method_options"])
        assert build_method(stage.method, stage.method_options) == options
        assert stage.construction == ConstructionSettings(**made["plan"]["construction"])


def test_all_twelve_cells_are_recorded_twice() -> None:
    cells = [(row["dataset"], row["ipc"]) for row in recorded_constructions()]
    assert len(set(cells)) == 12
    assert all(cells.count(cell) == 2 for cell in cells)


@pytest.mark.parametrize(
    ("dataset", "ipc", "sampler"), [("cifar10", 1, "langevin"), ("cifar10", 10, "sghmc"), ("mnist", 1, "sghmc")]
)
def test_the_paper_preset_samples_as_its_chains_move(dataset: str, ipc: int, sampler: str) -> None:
    plan = plan_of(dataset, ipc)
    assert plan.sampling.sampler == sampler
    assert ("momentum" in plan.method_options) == (sampler == "sghmc")


def test_a_sampler_that_is_named_comes_with_its_own_step_size() -> None:
    steps = {name: plan_of("cifar10", 10, sampler=name).sampling.step_size for name in ("langevin", "sghmc")}
    assert steps == {"langevin": 0.1, "sghmc": 0.0125}
    given = plan_of("cifar10", 10, sampler="langevin", sampling={"step_size": 0.02})
    assert (given.sampling.sampler, given.sampling.step_size) == ("langevin", 0.02)


def test_a_cyclical_sampler_of_a_preset_gives_way_to_a_named_one() -> None:
    assert plan_of("svhn", 10).sampling.schedule == "cyclical"
    named = plan_of("svhn", 10, sampler="langevin").sampling
    assert (named.schedule, named.step_size) == ("constant", 0.1)


def test_the_quick_preset_samples_by_langevin() -> None:
    assert plan_of("digits", 1, "quick").sampling.sampler == "langevin"
