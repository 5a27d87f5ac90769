"""The fast path computes what the plain path computes, and failing memory is handled."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from pseudocoresets.accelerated import Accelerator, block_length, default_accelerator, set_precision
from pseudocoresets.construct import ConstructionSettings, real_coreset, run_construction
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.data.augmentation import Augmentation, dsa
from pseudocoresets.divergences import ContrastiveDivergence, Points, Problem
from pseudocoresets.energy import Classifier, Energy, uniform_weights
from pseudocoresets.errors import DeviceMemoryError, InputError
from pseudocoresets.experts import train_experts
from pseudocoresets.inference import PosteriorSamples, SamplingSettings
from pseudocoresets.kernels import Langevin
from pseudocoresets.networks import Network, build_network
from pseudocoresets.seeds import Randomness

FLOAT32_ROUNDING = 1e-5
"""Relative; the sums have some ten thousand terms of rounding error 6e-8 each."""
BFLOAT16_GRADIENT = 0.1
"""Relative: bfloat16 keeps 8 bits, and autograd in bfloat16 itself is 0.06 to 0.08 away from float32 here."""
STANDARD_ERRORS = 4

needs_triton = pytest.mark.skipif(
    sys.platform != "linux", reason="Triton, which interprets the kernels, is installed on Linux only"
)
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@needs_triton
def test_kernels_agree_with_autograd_when_interpreted() -> None:
    script = Path(__file__).with_name("interpreted_kernels.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    for differences in found["gradients"]:
        assert max(differences.values()) < FLOAT32_ROUNDING, differences
    update = found["update"]
    assert update["velocity"] < 1e-5
    assert update["gradient"] == 0
    assert update["compact"] == 0
    assert abs(update["mean"]) < STANDARD_ERRORS
    assert abs(update["deviation"]) < STANDARD_ERRORS


@given(steps=st.integers(1, 500), images=st.integers(1, 20_000))
def test_blocks_divide_the_chain(steps: int, images: int) -> None:
    length = block_length(steps, images)
    assert steps % length == 0
    assert length == 1 or length * images <= 5000


@needs_triton
def test_augmenting_a_block_gives_each_step_its_kind_and_its_own_images() -> None:
    from pseudocoresets.accelerated.chains import augment_steps

    kinds = ["flip", "crop", "color", "crop", "flip", "cutout"]
    images = torch.randn(2, len(kinds), 3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = augment_steps(images, kinds, Randomness.for_purpose(0, "block"))
    flipped = images[:, 0].flip(-1)
    same = (found[:, 0] == images[:, 0]).flatten(2).all(-1)
    mirrored = (found[:, 0] == flipped).flatten(2).all(-1)
    assert (same | mirrored).all()
    hidden = found[:, 5] == 0
    assert torch.equal(found[:, 5], torch.where(hidden, 0.0, images[:, 5]))
    assert 0 < hidden.float().mean() < 1


def test_the_plain_path_is_used_where_there_is_no_gpu(digits: Dataset) -> None:
    network = build_network("convnet", digits.shape, 10)
    cpu = torch.device("cpu")
    assert Accelerator().chains_for(network, cpu, 1, 10, 5, soft=False, shared=True) is None
    theta = network.initialise(0, 1)
    assert Accelerator().probabilities(network, theta, torch.zeros(2, *digits.shape)) is None


def test_precision_is_auto_or_float32() -> None:
    set_precision("float32")
    assert not default_accelerator().enabled
    set_precision("auto")
    assert default_accelerator().enabled
    with pytest.raises(InputError, match="auto, float32"):
        set_precision("float8")


def test_experts_that_do_not_fit_side_by_side_are_trained_in_halves(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pseudocoresets.experts.train import _Trainer

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
    from pseudocoresets.experts.train import _Trainer

    def none(*_: object) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError("Tried to allocate 9 GiB. More text")

    monkeypatch.setattr(_Trainer, "train", none)
    with pytest.raises(DeviceMemoryError, match=r"batch size.*Tried to allocate 9 GiB"):
        train_experts(digits, "mlp:width=16", 1, epochs=1, device="cpu")


def test_predictions_that_do_not_fit_are_made_in_halves(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_network("mlp:width=16", digits.shape, 10)
    samples = PosteriorSamples(
        network.initialise(0, 4).unflatten(0, (2, 2)), network, digits.transform, "cold", SamplingSettings(chains=2)
    )
    images = digits.test.images[:37]
    whole = samples.predict(images)
    predict = PosteriorSamples._probabilities

    def scarce(self: PosteriorSamples, parameters: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > 10:
            raise torch.OutOfMemoryError("Tried to allocate 9 GiB. More text")
        return predict(self, parameters, inputs)

    monkeypatch.setattr(PosteriorSamples, "_probabilities", scarce)
    torch.testing.assert_close(samples.predict(images), whole)


def test_a_construction_without_memory_keeps_its_checkpoint(digits: Dataset, tmp_path: Path) -> None:
    experts = train_experts(digits, "mlp:width=16", 1, epochs=3, device="cpu")

    class Hungry(ContrastiveDivergence):
        calls = 0

        def loss(self, points: Points, problem: Problem, randomness: Randomness):  # type: ignore[no-untyped-def]
            Hungry.calls += 1
            if Hungry.calls > 25:
                raise torch.OutOfMemoryError("Tried to allocate 9 GiB. More text")
            return super().loss(points, problem, randomness)

    path = tmp_path / "checkpoint"
    settings = ConstructionSettings(iterations=50, learning_rate=1.0)
    with pytest.raises(DeviceMemoryError, match=r"--ipc.*Tried to allocate 9 GiB"):
        run_construction(digits, experts, "cd", Hungry(ahead=1, steps=2), settings, checkpoint=path, device="cpu")
    Hungry.calls = -1000
    made = run_construction(digits, experts, "cd", Hungry(ahead=1, steps=2), settings, checkpoint=path, device="cpu")
    assert len(made.history) == 50
    assert Hungry.calls == -1000 + 30


class TestOnGpu:
    """By ``make test-gpu`` on a machine with a CUDA device."""

    pytestmark = gpu

    @pytest.fixture
    def network(self) -> Network:
        return build_network("convnet:depth=3,width=128", (3, 32, 32), 10)

    @pytest.fixture
    def points(self) -> Points:
        generator = torch.Generator("cuda").manual_seed(0)
        x = torch.randn(20, 3, 32, 32, generator=generator, device="cuda")
        return Points(x, torch.arange(20, device="cuda") % 10, uniform_weights(20, 1000, "cuda"))

    @staticmethod
    def problem(network: Network, enabled: bool, augmentation: Augmentation | None) -> Problem:
        energy = Energy(Classifier(network), data_size=1000)
        return Problem(energy, augmentation=augmentation, accelerator=Accelerator(enabled))

    def test_image_gradients_agree_to_rounding(self, network: Network, points: Points) -> None:
        thetas = network.initialise(0, 3, "cuda")
        gradients = []
        for enabled in (False, True):
            x = points.x.clone().requires_grad_()
            energies = self.problem(network, enabled, None).energies(thetas, x, points)
            weights = torch.tensor([1.0, -0.5, 2.0], device="cuda")
            gradients.append(torch.autograd.grad((weights * energies).sum(), x)[0])
        plain, fast = gradients
        assert (fast - plain).norm() / plain.norm() < BFLOAT16_GRADIENT

    def test_one_noiseless_step_agrees_to_rounding(self, network: Network, points: Points) -> None:
        start = network.initialise(0, 2, "cuda")
        moves = []
        for enabled in (False, True):
            problem = self.problem(network, enabled, None)
            randomness = Randomness.for_purpose(0, "step", device="cuda")
            moves.append(problem.run_chain(Langevin(0.1), start, points, 1, randomness, noisy=False) - start)
        plain, fast = moves
        assert (fast - plain).norm() / plain.norm() < BFLOAT16_GRADIENT

    def test_noise_has_the_kernels_deviation(self, network: Network, points: Points) -> None:
        start = network.initialise(0, 4, "cuda")
        problem = self.problem(network, True, None)
        ends = [
            problem.run_chain(
                Langevin(0.01), start, points, 1, Randomness.for_purpose(0, "noise", device="cuda"), noisy=noisy
            )
            for noisy in (True, False)
        ]
        noise = (ends[0] - ends[1]) / math.sqrt(2 * 0.01 / 1000)
        count = noise.numel()
        assert abs(float(noise.mean())) < STANDARD_ERRORS / math.sqrt(count)
        assert abs(float(noise.std()) - 1) < STANDARD_ERRORS / math.sqrt(2 * count)
        assert abs(float((noise[0] * noise[1]).mean())) < STANDARD_ERRORS / math.sqrt(network.size)

    def test_chain_statistics_agree_within_monte_carlo_error(self, network: Network, points: Points) -> None:
        """Energy on the points after 60 augmented steps, over 16 chains each way."""
        start = network.initialise(3, device="cuda").expand(16, -1).contiguous()
        found = []
        for enabled in (False, True):
            problem = self.problem(network, enabled, dsa(flippable=True))
            randomness = Randomness.for_purpose(1, "chain", enabled, device="cuda")
            ends = torch.cat(
                [problem.run_chain(Langevin(0.05), part, points, 60, randomness) for part in start.split(4)]
            )
            with torch.no_grad():
                found.append(self.problem(network, False, None).energies(ends, points.x, points))
        plain, fast = found
        error = math.sqrt(float(plain.var() + fast.var()) / 16)
        # Chains of one population share their augmentations, so that 4 populations, not 16 chains, are independent.
        assert abs(float(plain.mean() - fast.mean())) < STANDARD_ERRORS * 2 * error

    def test_predictions_agree(self, network: Network, points: Points) -> None:
        thetas = network.initialise(0, 2, "cuda")
        fast = Accelerator().probabilities(network, thetas, points.x)
        assert fast is not None
        with torch.no_grad():
            plain = torch.stack([F.softmax(network.logits(theta, points.x), -1) for theta in thetas])
        assert (fast - plain).abs().max() < 0.02

    def test_experts_learn_the_same(self, digits: Dataset) -> None:
        accuracies = []
        for precision in ("float32", "auto"):
            set_precision(precision)
            network = build_network("convnet:width=32", digits.shape, 10)
            experts = train_experts(digits, network, 2, epochs=15, batch_size=32, momentum=0.9, device="cuda")
            inputs = digits.transform(digits.test.images)
            for expert in range(2):
                predicted = network.logits(experts.snapshot(expert, -1), inputs).argmax(-1)
                accuracies.append(float((predicted == digits.test.labels).float().mean()))
        assert min(accuracies) > 0.95, accuracies

    def test_a_coreset_is_constructed(self, digits: Dataset) -> None:
        experts = train_experts(digits, "convnet", 2, epochs=4, batch_size=32, device="cuda")
        made = run_construction(
            digits, experts, "cd", ContrastiveDivergence(ahead=2, steps=20), ConstructionSettings(iterations=20)
        )
        control = real_coreset(digits, ConstructionSettings(), experts.network.spec, "cd")
        assert not torch.equal(made.coreset.images, control.images)
        assert all(math.isfinite(row["loss"]) for row in made.history)
