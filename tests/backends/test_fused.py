"""The fast path computes what the plain path computes, and failing memory is handled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pseudocoresets.backends.fused import Accelerator, block_length, default_accelerator, set_precision
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.errors import DeviceMemoryError, InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.inference.sampling import PosteriorSamples
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.methods import ContrastiveDivergence, Points, Problem
from pseudocoresets.models.networks import build_network
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
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    for differences in [*found["gradients"], found["slopes"]]:
        assert max(differences.values()) < FLOAT32_ROUNDING, differences
    for differences in [*found["chains"], found["schedule"]]:
        assert max(differences.values()) < FLOAT32_ROUNDING, differences
    # A difference of two gradients over a spacing of 0.01 multiplies their rounding by a hundred.
    for differences in [*found["trajectory"], *found["matching"], found["window"]]:
        assert max(differences.values()) < 100 * FLOAT32_ROUNDING, differences
    update = found["update"]
    assert update["move"] < 1e-5
    assert update["gradient"] == 0
    assert update["compact"] == 0
    for noise in (update, found["noise"]):
        assert abs(noise["mean"]) < STANDARD_ERRORS
        assert abs(noise["deviation"]) < STANDARD_ERRORS


@given(steps=st.integers(1, 500), images=st.integers(1, 20_000))
def test_blocks_divide_the_chain(steps: int, images: int) -> None:
    length = block_length(steps, images)
    assert steps % length == 0
    assert length == 1 or length * images <= 5000


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
        run_construction(
            digits, experts, "cd", Hungry(expert_epochs=1, steps=2), settings, checkpoint=path, device="cpu"
        )
    Hungry.calls = -1000
    made = run_construction(
        digits, experts, "cd", Hungry(expert_epochs=1, steps=2), settings, checkpoint=path, device="cpu"
    )
    assert len(made.history) == 50
    assert Hungry.calls == -1000 + 30
