"""The fused backend computes what the plain one computes, and only what it can; failing memory is handled."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.backends import ChainPlan, PlainBackend, choose_backend
from pseudocoresets.construction.loop import Construction, run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import DeviceMemoryError, InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Rates
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.inference import PosteriorSamples, sample_posterior
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.kernels import Langevin
from pseudocoresets.methods import ContrastiveDivergence, Points
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts import train_experts

FLOAT32_ROUNDING = 1e-5
"""Relative; the sums have some ten thousand terms of rounding error 6e-8 each."""
STANDARD_ERRORS = 4

needs_triton = pytest.mark.skipif(
    sys.platform != "linux", reason="Triton, which interprets the kernels, is installed on Linux only"
)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@needs_triton
def test_kernels_agree_with_autograd_when_interpreted() -> None:
    script = Path(__file__).parents[1] / "support" / "interpreted_kernels.py"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    for differences in [*found["gradients"], *found["norms"], found["mean energies"], found["jobs"]]:
        assert max(differences.values()) < FLOAT32_ROUNDING, differences
    for differences in [*found["clipped"], *found["clipped in bfloat16"]]:
        assert differences["nothing"] == 0 and differences["captured"] == 1
    assert max(differences["sum"] for differences in found["clipped"]) < FLOAT32_ROUNDING
    assert max(differences["sum"] for differences in found["clipped in bfloat16"]) < 2
    for differences in [found["features"], *found["chains"], *found["chains by autograd"], *found["run_chain"]]:
        assert max(differences.values()) < FLOAT32_ROUNDING, differences
    assert max(found["bfloat16"]) < 2  # two roundings of the same size, by other kernels
    # Angles between gradients, and gaps between means, are differences of quantities that are nearly the same.
    for differences in found["condensation"]:
        assert max(differences.values()) < 100 * FLOAT32_ROUNDING, differences
    # A difference of two gradients over a spacing of 0.01 multiplies their rounding by a hundred.
    for differences in [*found["trajectory"], *found["matching"], *found["unroll"]]:
        assert max(differences.values()) < 100 * FLOAT32_ROUNDING, differences
    # Places between pixels are found to the rounding of their coordinates, up to 8 here, times the images' slopes.
    for differences in found["augmentation"]:
        assert max(differences.values()) < 20 * FLOAT32_ROUNDING, differences
    assert max(found["interleaved"].values()) == 0
    mixed, apart = found["kinds"]
    assert mixed == [20, 0, 0, 20, 0, 20]
    assert sum(apart) == sum(apart[kind] for kind in (0, 3, 5)) == 60
    assert all(abs(apart[kind] - 20) < STANDARD_ERRORS * math.sqrt(60 * 2 / 9) for kind in (0, 3, 5))
    update = found["update"]
    assert update["move"] < 1e-5
    assert update["gradient"] == 0
    assert update["compact"] == 0
    for noise in (update, found["noise"]):
        assert abs(noise["mean"]) < STANDARD_ERRORS
        assert abs(noise["deviation"]) < STANDARD_ERRORS


@needs_triton
def test_captured_work_gets_the_numbers_and_streams_that_the_host_draws_anew() -> None:
    from pseudocoresets.backends.fused.iteration import CapturedRandomness, HostDecision, RecordedRandomness

    def two(host: random.Random) -> list[int]:
        return host.sample(range(100), 2)

    first, second = (Randomness.for_purpose(0, "iteration", number) for number in range(2))
    recorded = RecordedRandomness(first.host, first.device, [])
    seen, _ = recorded.numbered(two, 3, "networks")
    captured = CapturedRandomness(first.host, first.device, iter(recorded.slots))
    before = seen.tolist()
    for slot in recorded.slots:
        slot.fill(Randomness.for_purpose(0, "iteration", 1).host)
    numbers, streams = captured.numbered(two, 3, "networks")
    wanted, fresh = second.numbered(two, 3, "networks")
    assert numbers.tolist() == wanted.tolist() != before
    for own, other in zip(streams, fresh, strict=True):
        assert torch.rand(3, generator=own.device).tolist() == torch.rand(3, generator=other.device).tolist()
        with pytest.raises(HostDecision):
            own.host.choice("ab")


@needs_triton
@given(steps=st.integers(1, 500), images=st.integers(1, 20_000))
@settings(deadline=None)
def test_blocks_divide_the_chain(steps: int, images: int) -> None:
    from pseudocoresets.backends.fused.backend import block_length

    length = block_length(steps, images)
    assert steps % length == 0
    assert length == 1 or length * images <= 5000


class ByForward(nn.Module):
    """The layers of a ConvNet under a forward of its own, which looks at what comes before and after its features."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor], classifier_first: bool = False) -> None:
        super().__init__()
        classifier = nn.Linear(16 * 2 * 2, 3)
        if classifier_first:
            self.classifier = classifier
        blocks = [(nn.Conv2d(n, 16, 3, padding=1), nn.GroupNorm(16, 16), nn.ReLU(), nn.AvgPool2d(2)) for n in (1, 16)]
        self.features = nn.Sequential(*(layer for block in blocks for layer in block))
        self.classifier = classifier
        self.combine = combine

    def forward(self, images: Tensor) -> Tensor:
        return self.combine(images, self.classifier(self.features(images).flatten(1)))


def by_forward(combine: Callable[[Tensor, Tensor], Tensor], classifier_first: bool = False) -> Network:
    return Network.from_module(lambda: ByForward(combine, classifier_first), (1, 8, 8), 3)


class WithoutFeatures(nn.Module):
    """A linear classifier in the form of a ConvNet."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.classifier = nn.Sequential(), nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


def plain_scores(images: Tensor, scores: Tensor) -> Tensor:
    return scores


def skipped_scores(images: Tensor, scores: Tensor) -> Tensor:
    return scores + images.flatten(1)[:, :3]


@needs_triton
@pytest.mark.parametrize(
    ("network", "fused"),
    [
        (by_forward(plain_scores), True),
        (by_forward(skipped_scores), False),
        (by_forward(lambda images, scores: 1.001 * scores), False),
        (by_forward(lambda images, scores: scores.float()), True),
        (by_forward(plain_scores, classifier_first=True), False),
        (build_network("convnet:depth=2,width=16", (1, 28, 28), 10), True),
        (build_network("convnet:depth=2,width=16,pooling=max", (1, 8, 8), 3), False),
        (Network.from_module(WithoutFeatures, (1, 8, 8), 3), False),
    ],
)
def test_only_networks_that_are_convnets_are_fused(network: Network, fused: bool) -> None:
    """Whatever their layers are called: the layout's mathematics must give the module's own logits."""
    from pseudocoresets.backends.fused.layout import layout_logits, layout_of

    layout = layout_of(network)
    assert (layout is not None) == fused
    if layout is not None:
        theta = network.initialise(3)
        images = torch.randn(4, *network.spec.shape, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(
            layout_logits(layout, theta, images), network.logits(theta, images), rtol=1e-4, atol=1e-4
        )


@needs_triton
def test_networks_of_equal_shape_and_other_mathematics_do_not_share_a_layout() -> None:
    """Their specs are the same, in either order; what is the same function is shared."""
    from pseudocoresets.backends.fused import FusedBackend

    like, other = by_forward(plain_scores), by_forward(skipped_scores)
    assert like.spec == other.spec
    cpu, thetas = torch.device("cpu"), like.initialise(0, 2)
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    for networks in ((like, other), (other, like)):
        backend = FusedBackend("cpu")
        layouts = {network: backend._layout(network, cpu) for network in networks}
        assert layouts[like] is not None
        assert layouts[other] is None
        assert backend._layout(by_forward(plain_scores), cpu) is layouts[like]
    plain = PlainBackend().probabilities(other, thetas, images)
    assert torch.equal(backend.probabilities(other, thetas, images), plain)


@needs_triton
def test_a_likelihood_of_its_own_is_not_fused() -> None:
    from pseudocoresets.backends.fused import FusedBackend

    class Tempered(Classifier):
        def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return 0.5 * super().log_likelihood(theta, x, y)

    network = by_forward(plain_scores)
    energy, points = Energy(Tempered(network), 10), Points(torch.ones(2, 1, 8, 8), torch.arange(2), torch.ones(2))
    found = FusedBackend("cpu").energies(energy, network.initialise(0, 2), points.x, points)
    assert torch.equal(found, energy.per_datum(network.initialise(0, 2), points.x, points.y, points.weights))


@needs_triton
def test_what_cannot_be_captured_goes_the_plain_way_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pseudocoresets.backends.fused import FusedBackend
    from pseudocoresets.backends.fused import backend as implementation

    def uncooperative(*arguments: object) -> None:
        raise RuntimeError("No graphs today.\nMore text")

    monkeypatch.setattr(implementation, "CapturedChains", uncooperative)
    network = by_forward(plain_scores)
    energy = Energy(Classifier(network), 10)
    points = Points(torch.ones(2, 1, 8, 8), torch.arange(2), torch.ones(2))
    start, backend = network.initialise(0, 2), FusedBackend("cpu")
    ends = [
        each.run_chain(ChainPlan(Langevin(0.1), energy, points, 3), start, Randomness.for_purpose(0))
        for each in (PlainBackend(), backend, backend)
    ]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith("The fast path could not be captured (No graphs today., at test_fused.py:")


def test_one_place_chooses() -> None:
    assert type(choose_backend("cpu")) is PlainBackend
    assert type(choose_backend("cpu", "float32")) is PlainBackend
    with pytest.raises(InputError, match="auto, float32"):
        choose_backend("cpu", "float8")


@needs_triton
def test_the_device_of_a_fused_backend_is_the_one_that_kernels_are_launched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams, graphs and Triton's kernels belong to the current device, whatever device their tensors are on."""
    from pseudocoresets.backends import fused

    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(fused, "FusedBackend", lambda device: device)
    assert choose_backend("cuda:1") == current[-1] == torch.device("cuda", 1)
    assert str(choose_backend("auto")) == "cuda"
    assert len(current) == 1


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("soft", [True, False])
def test_plain_chains_take_the_steps_they_are_told(shared: bool, soft: bool) -> None:
    """Two steps with momentum and decay, against the update spelt out; noise has the deviation it is given."""
    network, chains, images = build_network("mlp:width=4,depth=1", (1, 8, 8), 3), 2, 5
    generator = torch.Generator().manual_seed(0)
    start = network.initialise(0, chains)
    x = torch.randn(1 if shared else chains, 2, images, 1, 8, 8, generator=generator)
    y = torch.rand(images, 3, generator=generator).softmax(-1) if soft else torch.arange(images) % 3
    factors, randomness = torch.rand(images, generator=generator), Randomness.for_purpose(0)
    runner = PlainBackend().chains(network, torch.device("cpu"), chains, images, 2, soft, shared)
    runner.set_position(start)
    runner.set_rates(Rates(0.1, momentum=0.8), decay=0.01)
    runner.set_labels(y, factors)
    for block in x.split(runner.steps, 1):
        runner.run_block(block, None, randomness)
    for chain, end in enumerate(runner.position()):
        theta, velocity = start[chain], torch.zeros(network.size)
        for step in range(2):
            theta = theta.detach().requires_grad_()
            energy = F.cross_entropy(network.logits(theta, x[0 if shared else chain, step]), y, reduction="none")
            velocity = 0.8 * velocity + torch.autograd.grad((factors * energy).sum(), theta)[0] + 0.01 * theta.detach()
            theta = theta.detach() - 0.1 * velocity
        torch.testing.assert_close(end, theta, rtol=1e-5, atol=1e-6)
    still = runner.position()
    runner.set_rates(Rates(1e-3, noise=1e6))
    runner.run_block(x[:, :1], None, randomness)
    moved = runner.position() - still
    assert float(moved.std()) == pytest.approx(1e3, rel=STANDARD_ERRORS / (2 * moved.numel()) ** 0.5)


def test_experts_that_do_not_fit_side_by_side_are_trained_in_halves(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pseudocoresets.sources.experts.train import _Trainer

    sizes = []
    train = _Trainer.train

    def scarce(self: _Trainer, numbers: list[int], progress: object) -> list[torch.Tensor]:
        sizes.append(len(numbers))
        if len(numbers) > 1:
            raise torch.OutOfMemoryError("Tried to allocate 9 GiB. More text")
        return train(self, numbers, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(_Trainer, "train", scarce)
    experts = train_experts(digits, "mlp:width=16", 3, epochs=1, population=3, device="cpu")
    assert len(experts) == 3
    assert sizes == [3, 1, 2, 1, 1]


def test_one_expert_that_does_not_fit_is_an_error_with_numbers(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pseudocoresets.sources.experts.train import _Trainer

    def none(*_: object) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError("Tried to allocate 9 GiB. More text")

    monkeypatch.setattr(_Trainer, "train", none)
    with pytest.raises(DeviceMemoryError, match=r"batch size.*Tried to allocate 9 GiB"):
        train_experts(digits, "mlp:width=16", 1, epochs=1, device="cpu")


def test_predictions_that_do_not_fit_are_made_in_halves(digits: Dataset) -> None:
    network = build_network("mlp:width=16", digits.shape, 10)
    parameters, settings = network.initialise(0, 4).unflatten(0, (2, 2)), SamplingSettings(chains=2)
    samples = PosteriorSamples(parameters, Classifier(network), "cold", settings, transform=digits.transform)
    images = digits.test.images[:37]
    whole = samples.predict(images)

    class Scarce(PlainBackend):
        def probabilities(self, network: Network, thetas: Tensor, inputs: Tensor) -> Tensor:
            if len(inputs) > 10:
                raise torch.OutOfMemoryError("Tried to allocate 9 GiB. More text")
            return super().probabilities(network, thetas, inputs)

    torch.testing.assert_close(replace(samples, backend=Scarce()).predict(images), whole)


def test_chains_that_do_not_fit_are_an_error_that_says_so(digits: Dataset) -> None:
    class Scarce(PlainBackend):
        def run_chain(self, *_: object) -> Any:
            raise torch.OutOfMemoryError("Tried to allocate 9 GiB. More text")

    network = build_network("mlp:width=16", digits.shape, 10)
    coreset = real_coreset(digits, ConstructionSettings(), network.spec, "random")
    with pytest.raises(DeviceMemoryError, match=r"3 chains.*fewer chains.*Tried to allocate 9 GiB"):
        sample_posterior(coreset, chains=3, steps=8, samples=2, device="cpu", backend=Scarce())


def test_a_construction_without_memory_keeps_its_checkpoint(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = train_experts(digits, "mlp:width=16", 1, epochs=3, device="cpu")
    path, calls, whole = tmp_path / "checkpoint", 0, ContrastiveDivergence.loss

    def hungry(self: ContrastiveDivergence, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 26:
            raise torch.OutOfMemoryError("Tried to allocate 9 GiB. More text")
        return whole(self, *rest)

    def run() -> Construction:
        chosen = ConstructionSettings(iterations=50, learning_rate=1.0)
        method = ContrastiveDivergence(expert_epochs=1, steps=2)
        return run_construction(digits, experts, "cd", method, chosen, checkpoint=path, device="cpu")

    monkeypatch.setattr(ContrastiveDivergence, "loss", hungry)
    with pytest.raises(DeviceMemoryError, match=r"--ipc.*Tried to allocate 9 GiB"):
        run()
    assert len(run().history) == 50
    assert calls == 26 + 30
