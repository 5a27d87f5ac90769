"""Posterior samples under the three protocols."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import Invoke
from torch import Tensor
from torch.nn import functional as F

import pseudocoresets as pc
from pseudocoresets._io.files import write_json
from pseudocoresets.backends import choose_backend
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.energy import Energy, potential_and_gradient
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.data import Dataset
from pseudocoresets.inference.sampling import PROTOCOLS, chain_starts
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.kernels import KERNELS
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.sources.experts import Experts

FIVE_STEPS: dict[str, Any] = {"start": "point", "chains": 1, "steps": 5, "samples": 1, "augment": False, "seed": 3}
FEW = {"chains": 3, "steps": 60, "samples": 5, "step_size": 0.1, "temperature": 0.1, "device": "cpu"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_gives_samples_that_predict(
    coreset: pc.Coreset, experts: Experts, digits: Dataset, protocol: str
) -> None:
    samples = pc.sample_posterior(coreset, start=protocol, experts=experts, **FEW)
    assert samples.protocol == protocol
    assert samples.parameters.shape == (3, 1 if protocol == "point" else 5, experts.network.size)
    probabilities = samples.predict(digits.test.images[:7])
    assert probabilities.shape == (3, samples.parameters.shape[1], 7, 10)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(probabilities.shape[:-1]))
    report = pc.evaluate(samples, digits.test)
    assert len(report.accuracy.values) == 3
    assert report.accuracy.mean > 0.5, "ten classes, so chance is a tenth"
    assert len(set(report.nll.values)) == 3, "chains are independent"


@pytest.mark.parametrize("protocol", ["cold", "point"])
def test_cold_and_point_see_the_coreset_only(coreset: pc.Coreset, experts: Experts, protocol: str) -> None:
    """Experts, which have seen the full data, change nothing."""
    with_experts = pc.sample_posterior(coreset, start=protocol, experts=experts, **FEW)
    without = pc.sample_posterior(coreset, start=protocol, **FEW)
    assert torch.equal(with_experts.parameters, without.parameters)


def test_cold_chains_start_at_fresh_initialisations(coreset: pc.Coreset, experts: Experts) -> None:
    """One minute step: chains are where they started, which is no expert, and differs from chain to chain."""
    still = {**FEW, "steps": 1, "samples": 1, "burn_in": 0.0, "step_size": 1e-12}
    starts = pc.sample_posterior(coreset, start="cold", **still).parameters[:, 0]
    other = pc.sample_posterior(coreset, start="cold", **still, seed=1).parameters[:, 0]
    assert not torch.equal(starts, other)
    own = experts.snapshot(0, -1)
    typical = float((starts[0] - starts[1]).norm())
    assert typical > 1
    assert float((starts[0] - own).norm()) > 0.5 * typical
    at_experts = pc.sample_posterior(coreset, start="expert", experts=experts, **still).parameters[:, 0]
    for chain in range(3):
        torch.testing.assert_close(at_experts[chain], experts.snapshot(chain % 2, -1), rtol=0, atol=1e-4)


def test_the_expert_protocol_leaks_the_full_data(digits: Dataset, experts: Experts) -> None:
    """Why it never stands alone: from the experts, even random real images seem to be a fine coreset."""
    control = real_coreset(digits, ConstructionSettings(ipc=1), experts.network.spec, "random")
    few = {**FEW, "steps": 10, "samples": 2, "step_size": 0.01}
    cold = pc.evaluate(pc.sample_posterior(control, start="cold", **few), digits.test)
    leaked = pc.evaluate(pc.sample_posterior(control, start="expert", experts=experts, **few), digits.test)
    assert leaked.accuracy.mean > cold.accuracy.mean + 0.2


def test_the_coreset_is_better_than_its_control(coreset: pc.Coreset, digits: Dataset) -> None:
    control = real_coreset(digits, ConstructionSettings(ipc=1), coreset.network, "random")
    longer = {**FEW, "steps": 150}
    learned = pc.evaluate(pc.sample_posterior(coreset, **longer), digits.test)
    real = pc.evaluate(pc.sample_posterior(control, **longer), digits.test)
    assert learned.accuracy.mean > real.accuracy.mean + 0.1


@pytest.mark.parametrize(
    ("sampler", "build", "rate", "options"),
    [
        (None, torch.optim.SGD, 0.05, {"momentum": 0.9}),
        ("sgd:momentum=0", torch.optim.SGD, 0.05, {}),
        ("adam:step_size=0.01", torch.optim.Adam, 0.01, {}),
        (pc.kernels.Adam(0.01), torch.optim.Adam, 0.01, {}),
    ],
)
def test_point_is_sgd_with_momentum_or_another_optimiser(
    coreset: pc.Coreset, sampler: Any, build: Any, rate: float, options: dict[str, float]
) -> None:
    """The same training by an ordinary module: cross-entropy plus the prior's decay, a tenth of the rate at half."""
    steps = 20
    settings: dict[str, Any] = {"start": "point", "chains": 1, "samples": 1, "augment": False, "seed": 3}
    samples = pc.sample_posterior(coreset, sampler, steps=steps, point_learning_rate=0.05, **settings)
    start = pc.sample_posterior(coreset, steps=1, burn_in=0.0, point_learning_rate=1e-30, **settings)
    module = samples.network.module(start.parameters[0, 0])
    optimiser = build(module.parameters(), lr=rate, weight_decay=1 / coreset.data_size, **options)
    for step in range(steps):
        if step == steps // 2:
            optimiser.param_groups[0]["lr"] = rate / 10
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(coreset.images), coreset.labels).backward()
        optimiser.step()
    torch.testing.assert_close(samples.parameters[0, 0], samples.network.flatten(module), rtol=1e-4, atol=1e-5)


def test_another_network_is_sampled_as_the_preset_says_for_others(
    coreset: pc.Coreset, coreset_file: Path, tmp_path: Path, bpc: Invoke
) -> None:
    own, other = str(coreset.network), "convnet:depth=1,width=4"
    write_json(
        preset := tmp_path / "own.json",
        {
            "sampling": {"steps": 2, "samples": 1, "chains": 1},
            "sampling_for": {
                coreset.method: {"sampler": "sghmc"},
                f"{coreset.method} elsewhere": {"sampler": "langevin"},
            },
        },
    )
    for network, sampler in ((None, "sghmc"), (own, "sghmc"), (other, "langevin")):
        samples = pc.sample_posterior(coreset, network=network, preset=preset, device="cpu")
        named = ["--network", network] if network else []
        typed = ["evaluate", coreset_file, "--preset", preset, "--controls", 0, "--json", *named]
        assert samples.settings.sampler == sampler
        assert json.loads(bpc(*typed).stdout)["posterior"]["sampler"] == sampler


def test_an_optimiser_is_no_sampler(coreset: pc.Coreset, bpc: Invoke) -> None:
    with pytest.raises(InputError, match="draws no samples"):
        pc.sample_posterior(coreset, "adam")
    refused = bpc("run", "--sampler", "adam", "--method", "random")
    assert refused.exit_code == 2 and "protocol 'point'" in " ".join(refused.stderr.split())


def test_a_distilled_coreset_is_judged_by_the_steps_it_was_learned_with(digits: Dataset) -> None:
    """Four steps on alternating halves of two images per class, the second epoch as the first, each of its own size."""
    options = {"steps": 2, "epochs": 2, "batch_size": 20, "step_size_learning_rate": 0.01}
    made = pc.construct(
        digits, None, "dd", 2, network="convnet:depth=1,width=4", iterations=2, method_options=options, device="cpu"
    )
    sizes = made.configuration["learned"]["step_size"]
    assert len(set(sizes)) == 4
    drawn = pc.sample_posterior(made, learned_steps=True, **FIVE_STEPS)
    network, model = drawn.network, Classifier(drawn.network)
    theta = network.initialise(derive_seed(3, "cold start"), 1)[0]
    for t, size in enumerate(sizes):
        part = slice(t % 2, None, 2)
        theta = theta.detach().requires_grad_()
        loss = F.cross_entropy(network.logits(theta, made.images[part]), made.labels[part])
        prior = model.decay(made.data_size) * theta.square().sum() / 2
        theta = theta - size * torch.autograd.grad(loss + prior, theta)[0]
    torch.testing.assert_close(drawn.parameters[0, 0], theta.detach(), rtol=1e-4, atol=1e-6)


def test_a_learned_learning_rate_is_that_of_point(coreset: pc.Coreset) -> None:
    learned = replace(coreset, configuration={**coreset.configuration, "learned": {"step_size": 0.07}})
    found = pc.sample_posterior(learned, learned_steps=True, **FIVE_STEPS)
    wanted = pc.sample_posterior(coreset, point_learning_rate=0.07, **FIVE_STEPS)
    assert torch.equal(found.parameters, wanted.parameters)
    without = pc.sample_posterior(coreset, learned_steps=True, **FIVE_STEPS)
    assert torch.equal(without.parameters, pc.sample_posterior(coreset, **FIVE_STEPS).parameters)


def test_seeds_decide_everything(coreset: pc.Coreset) -> None:
    first, again, other = (pc.sample_posterior(coreset, **FEW, seed=seed).parameters for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_temperature_sets_the_spread(coreset: pc.Coreset, experts: Experts) -> None:
    """At zero and without augmentation the chain is gradient descent; heat drives the chains apart."""
    settings = SamplingSettings(chains=3, steps=60, samples=5, step_size=0.1, temperature=0.0, augment=False)
    plain = settings.as_json() | {"device": "cpu"}
    samples = pc.sample_posterior(coreset, **plain).parameters
    energy = Energy(Classifier(experts.network), coreset.data_size)
    target = energy.target(coreset.images, coreset.labels, coreset.weights)
    theta = samples[0, 0]
    for _ in range(6):
        theta = theta - 0.1 * potential_and_gradient(target, theta)[1]
    torch.testing.assert_close(theta, samples[0, 1], rtol=1e-4, atol=1e-5)
    warm = pc.sample_posterior(coreset, **{**plain, "temperature": 100.0}).parameters
    assert float(warm[:, -1].std()) > 1.5 * float(samples[:, -1].std())


@pytest.mark.parametrize(
    ("sampler", "steady"), [("langevin", False), ("sghmc", False), ("psghmc", False), ("hmc", True), ("mala", True)]
)
def test_samplers_that_accept_or_reject_see_one_potential(
    coreset: pc.Coreset, monkeypatch: pytest.MonkeyPatch, sampler: str, steady: bool
) -> None:
    """The others see a fresh augmentation of the points at each evaluation."""
    kernel: Any = KERNELS[sampler]
    whole, differences = kernel.step, []

    def step(self: Any, state: Any, target: Any, generator: torch.Generator) -> Any:
        values = torch.stack([target.potential(state.position) for _ in range(4)])
        differences.append(float((values - values[0]).abs().max()))
        return whole(self, state, target, generator)

    monkeypatch.setattr(kernel, "step", step)
    pc.sample_posterior(coreset, sampler, **{**FEW, "steps": 10, "step_size": 0.02})
    assert differences
    assert (max(differences) == 0) == steady


@pytest.mark.parametrize("sampler", ["sghmc", "psghmc", "hmc", "mala"])
def test_other_samplers_move_towards_the_posterior(coreset: pc.Coreset, digits: Dataset, sampler: str) -> None:
    few = {**FEW, "samples": 1, "step_size": 0.02}
    chains = [pc.sample_posterior(coreset, sampler, **{**few, "steps": steps}) for steps in (1, 40)]
    nll = [pc.evaluate(samples, digits.test).nll for samples in chains]
    assert nll[1].mean < nll[0].mean


@given(steps=st.integers(1, 500), samples=st.integers(1, 50), burn_in=st.floats(0, 0.99))
@settings(max_examples=100, deadline=None)
def test_kept_steps_are_after_burn_in_and_evenly_spaced(steps: int, samples: int, burn_in: float) -> None:
    left = steps - round(burn_in * steps)
    if samples > left:
        with pytest.raises(InputError, match="do not fit"):
            SamplingSettings(steps=steps, samples=samples, burn_in=burn_in)
        return
    kept = sorted(SamplingSettings(steps=steps, samples=samples, burn_in=burn_in).kept_steps())
    assert len(kept) == samples
    assert kept[-1] == steps
    assert kept[0] > steps - left
    gaps = {after - before for before, after in pairwise(kept)}
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"start": "warm"}, "cold, point, expert; got 'warm'"),
        ({"start": "expert"}, "starts from experts"),
        ({"chains": 0}, "'chains' is a number from 1"),
        ({"burn_in": 1.0}, "'burn_in' is a number from 0 to below 1"),
        ({"sampler": "langevine"}, "Did you mean 'langevin'"),
        ({"sampler": "langevine", "start": "point"}, "Did you mean 'langevin'"),
        ({"network": "convnett"}, "Did you mean 'convnet'"),
        ({"nonsense": 1}, "has no option 'nonsense'"),
        ({"temperature": -1.0}, "temperature"),
        ({"prior_scale": 0.0}, "'prior_scale'"),
        ({"step_size": -0.1}, "'step_size'.*is a number from 1e-30"),
        ({"device": "abacus"}, "must be auto, cpu or cuda"),
    ],
)
def test_bad_settings_are_named(coreset: pc.Coreset, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        pc.sample_posterior(coreset, **{**FEW, **wrong})


def test_experts_of_another_network_are_refused(coreset: pc.Coreset, experts: Experts) -> None:
    with pytest.raises(InputError, match="another network"):
        pc.sample_posterior(coreset, start="expert", experts=experts, network="mlp:depth=1,width=8", **FEW)


def test_a_coreset_without_a_network_needs_one_named(coreset: pc.Coreset) -> None:
    nameless = replace(coreset, network=None)
    with pytest.raises(InputError, match="say which one"):
        pc.sample_posterior(nameless, **FEW)
    assert pc.sample_posterior(nameless, network="mlp:depth=1,width=8", **FEW).network.spec.options["width"] == 8


@pytest.mark.parametrize("protocol", ["cold", "point"])
def test_a_step_size_that_is_too_large_is_named(coreset: pc.Coreset, protocol: str) -> None:
    with pytest.raises(DivergenceError, match="lower it"):
        pc.sample_posterior(coreset, start=protocol, **{**FEW, "step_size": 1e30, "point_learning_rate": 1e30})


def test_chains_from_experts_start_where_they_are_told(coreset: pc.Coreset, experts: Experts) -> None:
    """Zero steps from the starts of the protocol: a named epoch, or any snapshot of any expert, plus noise."""
    backend, device = choose_backend("cpu"), torch.device("cpu")

    def starts(**settings: Any) -> Tensor:
        chosen = SamplingSettings(chains=40, steps=1, samples=1, burn_in=0.0, **settings)
        found = chain_starts(coreset, experts.network, "expert", chosen, experts, device, backend)
        assert found.parameters.shape == (40, 1, experts.network.size)
        return found.parameters[:, 0]

    def distances(position: Tensor) -> Tensor:
        every = [experts.snapshot(number, epoch) for number in range(len(experts)) for epoch in range(5)]
        return (position - torch.stack(every)).pow(2).mean(-1).sqrt()

    assert torch.equal(starts()[:2], torch.stack([experts.snapshot(0, 4), experts.snapshot(1, 4)]))
    assert torch.equal(starts(start_epoch=2)[1], experts.snapshot(1, 2))
    anywhere = starts(start_epoch=None)
    picked = [int(distances(each).argmin()) for each in anywhere]
    assert all(distances(each).min() == 0 for each in anywhere)
    assert len(set(picked)) > 5
    noisy = starts(start_epoch=None, start_noise=0.01)
    off = torch.stack([distances(each).min() for each in noisy])
    size = noisy.shape[1]
    torch.testing.assert_close(off, torch.full_like(off, 0.01), rtol=6 / (2 * size) ** 0.5, atol=0)
    with pytest.raises(InputError, match="4 epochs"):
        starts(start_epoch=5)
