"""Presets: what they choose, and that the results page tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from pseudocoresets.workflows.plan import Plan, make_plan


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


def test_a_method_that_is_named_is_sampled_as_it_was_built() -> None:
    for method in ("cd", "bptt", "wasserstein"):
        plan = plan_of("mnist", 10, method=method)
        assert plan.sampling.mixed_kinds == plan.construction.mixed_kinds == (method == "bptt")


def test_the_quick_preset_samples_by_langevin() -> None:
    assert plan_of("digits", 1, "quick").sampling.sampler == "langevin"
