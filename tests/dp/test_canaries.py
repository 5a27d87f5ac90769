"""Is the stated epsilon true? Many outcomes with and without an example, of the real code and of broken code."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from canaries import epsilon_at_least
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.backends import PlainBackend, plain
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.dp import (
    Budget,
    ExampleVectors,
    Guarantee,
    Release,
    SystemEntropy,
    calibrated,
    per_example_gradients,
    spent,
)
from pseudocoresets.methods import Problem, RealData
from pseudocoresets.methods.condensation import private_matching
from pseudocoresets.methods.condensation.private_matching import TARGETS, PrivateMatching
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.sources.experts import private
from pseudocoresets.sources.experts.private import PrivateTrainer
from pseudocoresets.sources.experts.store import ExpertSettings, PrivateTraining

pytest.importorskip("dp_accounting")
BUDGET = Budget(3.0, 0.01)
RUNS = 1500
OTHERS = 12
HOST = torch.device("cpu")


@pytest.fixture
def entropy() -> SystemEntropy:
    generator = np.random.default_rng(5)
    return SystemEntropy(lambda count: generator.bytes(count))


def images(canary: bool) -> pc.Dataset:
    """A few dark images of class 0, and perhaps one bright one of class 1."""
    x = torch.zeros(OTHERS + 1, 1, 8, 8, dtype=torch.uint8)
    x[-1] = 255
    y = torch.tensor([0] * OTHERS + [1])
    data = pc.Dataset.from_tensors(x, y, (x, y)).publicly_normalised()
    kept = torch.arange(OTHERS + canary)
    return replace(data, train=data.train.subset(kept), transform=data.transform_source)


@cache
def promised() -> Guarantee:
    return calibrated(BUDGET, OTHERS + 1, lambda noise: Release("one sum", noise))


def gradient_scores(
    canary: bool, entropy: SystemEntropy, monkeypatch: pytest.MonkeyPatch, promise: Guarantee | None = None
) -> np.ndarray:
    """How far each run's noisy gradient points along the canary's own, which is far longer than the others.

    These are made orthogonal to it, so that it does not matter how many of them take part.
    """
    data, network = images(canary), pc.build_network("mlp:depth=1,width=4", (1, 8, 8), 2)
    theta, bright = network.initialise(0), images(True)
    found = per_example_gradients(network, theta, bright.transform(bright.train.images), bright.train.labels)
    own = 1000 * found[-1]
    rest = found[0] - (found[0] @ own) / (own @ own) * own
    look_up = lambda network, theta, x, y: ExampleVectors.of(torch.where(y[:, None] == 1, own, rest))  # noqa: E731
    monkeypatch.setattr(plain, "example_gradients", look_up)
    settings = ExpertSettings(epochs=1, batch_size=OTHERS + 1, augment=False)
    training = PrivateTraining(BUDGET, 1.0, promise or promised())
    trainer = PrivateTrainer(data, network, settings, HOST, PlainBackend(), training, entropy)
    nothing = Randomness.for_purpose(0, "test")
    runs = [trainer.gradient(theta, nothing) * len(data.train) @ own for _ in range(RUNS)]
    return torch.stack(runs).numpy()


def release_scores(canary: bool, entropy: SystemEntropy, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """How much of the canary each run's release holds, in its class."""
    monkeypatch.setattr(private_matching, "ENTROPY", entropy)
    data, network = images(canary), pc.build_network("mlp:depth=1,width=4", (1, 8, 8), 2)
    energy, real = Energy(Classifier(network), OTHERS + 1), RealData.of(data, HOST)
    problem = Problem(energy, real_data=lambda: real)
    method = PrivateMatching(promised().releases[0].noise_multiplier, networks=1)
    centre = method._centre(0, network, problem, HOST)
    sums = method._sums(method._view(0, network, problem, centre), real, 2)
    bright = method._view(0, network, problem, centre)(data.transform(images(True).train.images[-1:]))
    monkeypatch.setattr(PrivateMatching, "_sums", lambda *given: sums)
    monkeypatch.setattr(PrivateMatching, "_centre", lambda *given: centre)
    runs = [method.release(network, problem, HOST)[TARGETS][0, 1] @ bright[0] for _ in range(RUNS)]
    monkeypatch.undo()
    return torch.stack(runs).numpy()


def test_noisy_gradients_keep_to_epsilon(entropy: SystemEntropy, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [gradient_scores(canary, entropy, monkeypatch) for canary in (True, False)]
    bound = epsilon_at_least(scores[0], scores[1], BUDGET.delta)
    assert 0.5 < bound <= BUDGET.epsilon


def test_gradients_without_noise_are_caught(entropy: SystemEntropy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "noisy_sum", lambda total, norm, noise, entropy: total.float())
    scores = [gradient_scores(canary, entropy, monkeypatch) for canary in (True, False)]
    bound = epsilon_at_least(scores[0], scores[1], BUDGET.delta)
    assert bound > BUDGET.epsilon


def test_steps_in_which_everybody_takes_part_are_caught(
    entropy: SystemEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise keeps to epsilon only because an example takes part in one step of five."""
    sampled = Release("sampled sum", 0.8, 0.2)
    epsilon = spent([sampled], BUDGET.delta)
    bounds = []
    for release in (sampled, replace(sampled, sampling_rate=1.0)):
        promise = Guarantee(epsilon, BUDGET.delta, "a test", OTHERS + 1, (release,))
        scores = [gradient_scores(canary, entropy, monkeypatch, promise) for canary in (True, False)]
        bounds.append(epsilon_at_least(scores[0], scores[1], BUDGET.delta))
    assert bounds[0] <= epsilon < bounds[1]


def test_clipping_after_the_sum_is_caught(entropy: SystemEntropy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean gradient clipped to c instead of each: one example may then change the sum by n c."""

    def mean_clipped(gradients: ExampleVectors, norm: float, admitted: Tensor) -> Tensor:
        total = gradients.weighted(admitted.double())
        return total * (norm * admitted.sum() / total.norm()).clamp_max(1.0)

    monkeypatch.setattr(plain, "clipped_sum", mean_clipped)
    scores = [gradient_scores(canary, entropy, monkeypatch) for canary in (True, False)]
    bound = epsilon_at_least(scores[0], scores[1], BUDGET.delta)
    assert bound > BUDGET.epsilon


def test_released_features_keep_to_epsilon(entropy: SystemEntropy, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [release_scores(canary, entropy, monkeypatch) for canary in (True, False)]
    assert 0.5 < epsilon_at_least(scores[0], scores[1], BUDGET.delta) <= BUDGET.epsilon


def test_released_features_without_noise_are_caught(entropy: SystemEntropy, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = []
    for canary in (True, False):
        monkeypatch.setattr(private_matching, "noisy_sum", lambda total, norm, noise, entropy: total.float())
        scores.append(release_scores(canary, entropy, monkeypatch))
    assert epsilon_at_least(scores[0], scores[1], BUDGET.delta) > BUDGET.epsilon
