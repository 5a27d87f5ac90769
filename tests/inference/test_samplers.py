"""Any sampler works in inference, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import pseudocoresets as pc
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.data import Dataset
from pseudocoresets.kernels import KERNELS, SCHEDULES, SGHMC
from pseudocoresets.models.networks import build_network

STEP_SIZES = {"langevin": 0.1, "sghmc": 0.02, "psghmc": 0.02, "mala": 1e-4, "hmc": 1e-3, "nuts": 1e-3}


@pytest.fixture(scope="module")
def control(digits: Dataset) -> pc.Coreset:
    network = build_network("mlp:width=8,depth=1", digits.shape, 10)
    return real_coreset(digits, pc.ConstructionSettings(ipc=2), network.spec, "random")


@pytest.mark.parametrize("sampler", sorted(KERNELS))
def test_every_sampler_gives_finite_samples_that_differ(sampler: str, control: pc.Coreset) -> None:
    samples = pc.sample_posterior(
        control, sampler, chains=2, steps=12, samples=3, step_size=STEP_SIZES[sampler], device="cpu"
    )
    assert samples.parameters.shape == (2, 3, samples.network.size)
    assert torch.isfinite(samples.parameters).all()
    assert not torch.equal(samples.parameters[0], samples.parameters[1])
    assert not torch.equal(samples.parameters[:, 0], samples.parameters[:, -1])


def test_a_kernel_registered_later_is_a_sampler(control: pc.Coreset) -> None:
    few: dict[str, Any] = {"chains": 2, "steps": 12, "samples": 3, "step_size": 0.05, "device": "cpu"}
    KERNELS.add("late", lambda step_size: SGHMC(step_size, 0.3))
    try:
        late = pc.sample_posterior(control, "late", **few)
    finally:
        del KERNELS._entries["late"]
    assert torch.equal(late.parameters, pc.sample_posterior(control, "sghmc:momentum_decay=0.3", **few).parameters)
    with pytest.raises(pc.InputError, match="no sampler named 'late'"):
        pc.sample_posterior(control, "late", **few)


def test_a_kernel_is_given_as_an_object_with_its_own_step_size(control: pc.Coreset) -> None:
    few: dict[str, Any] = {"chains": 2, "steps": 12, "samples": 3, "device": "cpu"}
    given = pc.sample_posterior(control, SGHMC(0.05, 0.3), step_size=9.0, **few)
    named = pc.sample_posterior(control, "sghmc:momentum_decay=0.3", step_size=0.05, **few)
    assert torch.equal(given.parameters, named.parameters)
    assert json.loads(json.dumps(given.settings.as_json()))["sampler"] == "sghmc:step_size=0.05,momentum_decay=0.3"


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_every_schedule_learns_more_than_chance(schedule: str, control: pc.Coreset, digits: Dataset) -> None:
    samples = pc.sample_posterior(
        control, chains=2, steps=200, samples=4, step_size=0.2, schedule=schedule, temperature=0.1, device="cpu"
    )
    assert pc.evaluate(samples, digits.test).ensemble["accuracy"] > 0.3


def test_chains_are_compared_in_function_space(control: pc.Coreset, digits: Dataset) -> None:
    samples = pc.sample_posterior(control, chains=3, steps=40, samples=8, step_size=0.2, device="cpu")
    diagnostics = pc.evaluate(samples, digits.test).as_json()["diagnostics"]
    assert diagnostics["r_hat_max"] >= 1 - 0.1
    assert diagnostics["warning"], "three short chains from different starts do not agree"


def test_the_point_protocol_has_no_chains_to_compare(control: pc.Coreset, digits: Dataset) -> None:
    samples = pc.sample_posterior(control, start="point", chains=2, steps=20, samples=1, device="cpu")
    assert pc.evaluate(samples, digits.test).as_json()["diagnostics"] is None


def test_nuts_refuses_a_large_network(control: pc.Coreset) -> None:
    with pytest.raises(pc.InputError, match="NUTS is for models of at most"):
        pc.sample_posterior(control, "nuts", network="mlp:width=256", steps=12, samples=3, device="cpu")
