"""The construction loop: what it learns, what it records, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudocoresets as pc
from pseudocoresets.construction.loop import Construction, run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.errors import DivergenceError, FileFormatError, InputError
from pseudocoresets.core.fingerprint import IDENTITY
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.methods import (
    BPTT,
    DistributionMatching,
    GradientMethod,
    Hyperparameter,
    Loss,
    Points,
    Problem,
    build_method,
)
from pseudocoresets.sources.experts import Experts

QUICK = {"expert_epochs": 1, "max_start_epoch": 1, "steps": 2, "step_size": 0.05}


@dataclass(frozen=True)
class Pull(GradientMethod):
    """A method whose loss is known: half the squared distance of the points to a constant, and of an extra to 3."""

    towards: float = 2.0
    spoil_at: int | None = field(default=None, metadata={IDENTITY: False})
    interrupt_at: int | None = field(default=None, metadata={IDENTITY: False})

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        if self.interrupt_at == self.calls:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        noise = torch.rand((), generator=randomness.device)
        value = (
            (points.x - self.towards).square().sum() / 2 + (points.hyperparameters["rate"] - 3).square() / 2 + 0 * noise
        )
        if self.spoil_at == self.calls:  # type: ignore[attr-defined]
            value = value * float("nan")
        return Loss(value, {"noise": noise})

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        return {"rate": Hyperparameter(1.0, 0.1)}


def run(data: Dataset, experts: Experts, method: Any, **options: Any) -> Construction:
    places = {
        key: options.pop(key) for key in ("checkpoint", "rescue", "initial", "checkpoint_seconds") if key in options
    }
    settings = ConstructionSettings(**{"iterations": 25, "learning_rate": 0.1, **options})
    return run_construction(data, experts, "pull", method, settings, device="cpu", **places)


def test_the_points_follow_gradient_descent(digits: Dataset, experts: Experts) -> None:
    """x <- x - 0.1 (x - 2): after 25 steps the distance to 2 is 0.9^25 of what it was."""
    made = run(digits, experts, Pull())
    torch.testing.assert_close(made.coreset.images - 2, (made.initial.images - 2) * 0.9**25, rtol=1e-4, atol=1e-5)
    assert made.coreset.configuration["learned"]["rate"] == pytest.approx(3 - 2 * 0.9**25, rel=1e-4)
    assert torch.equal(made.coreset.labels, made.initial.labels)
    assert [row["iteration"] for row in made.history] == list(range(1, 26))
    losses = [row["loss"] for row in made.history]
    assert losses == sorted(losses, reverse=True)


def test_momentum_is_that_of_sgd(digits: Dataset, experts: Experts) -> None:
    made = run(digits, experts, Pull(), momentum=0.5)
    x, velocity = made.initial.images.clone(), torch.zeros_like(made.initial.images)
    for _ in range(25):
        velocity = 0.5 * velocity + (x - 2)
        x = x - 0.1 * velocity
    torch.testing.assert_close(made.coreset.images, x, rtol=1e-4, atol=1e-5)


def test_adam_moves_every_point_by_its_rate_at_first(digits: Dataset, experts: Experts) -> None:
    """Adam's first step is the learning rate against the sign of the gradient, whatever the gradient's size."""
    made = run(digits, experts, Pull(), optimiser="adam", learning_rate=0.01, iterations=1)
    moved = made.coreset.images - made.initial.images
    torch.testing.assert_close(moved, 0.01 * (2 - made.initial.images).sign(), rtol=1e-3, atol=1e-6)


def test_averaging_returns_the_average_of_the_iterates(digits: Dataset, experts: Experts) -> None:
    made = run(digits, experts, Pull(), averaging=0.8)
    x = made.initial.images.clone()
    average = x.clone()
    for iteration in range(1, 26):
        x = x - 0.1 * (x - 2)
        kept = min(0.8, iteration / (iteration + 10))
        average = kept * average + (1 - kept) * x
    torch.testing.assert_close(made.coreset.images, average, rtol=1e-4, atol=1e-5)
    assert made.coreset.configuration["learned"]["rate"] == pytest.approx(3 - 2 * 0.9**25, rel=1e-4)


@pytest.mark.parametrize("part", [0.4, 1.0])
def test_annealing_lets_the_learning_rate_fall_to_zero(digits: Dataset, experts: Experts, part: float) -> None:
    made = run(digits, experts, Pull(), annealing=part)
    left, rate_left = 1.0, 2.0
    for iteration in range(25):
        falling = min(1.0, (25 - iteration) / (part * 25))
        left *= 1 - 0.1 * falling
        rate_left *= 1 - 0.1 * falling
    torch.testing.assert_close(made.coreset.images - 2, (made.initial.images - 2) * left, rtol=1e-4, atol=1e-5)
    assert made.coreset.configuration["learned"]["rate"] == pytest.approx(3 - rate_left, rel=1e-4)


def test_the_start_is_real_images_of_each_class(digits: Dataset, experts: Experts) -> None:
    start = real_coreset(digits, ConstructionSettings(ipc=3), experts.network.spec, "random")
    assert start.labels.tolist() == [label for label in range(10) for _ in range(3)]
    real = digits.transform(digits.train.images)
    for image, label in zip(start.images, start.labels, strict=True):
        same = (real == image).flatten(1).all(1)
        assert digits.train.labels[same].tolist().count(int(label)) >= 1
    assert float(start.weights.sum()) == pytest.approx(len(digits.train), rel=1e-5)
    unit = real_coreset(digits, ConstructionSettings(ipc=3, weights="unit"), None, "random")
    assert unit.weights.tolist() == [1.0] * 30


def test_labels_and_weights_can_be_learned(digits: Dataset, experts: Experts) -> None:
    made = pc.construct(
        digits,
        experts,
        "cd",
        1,
        method_options=QUICK,
        iterations=5,
        learning_rate=1.0,
        learn_labels=True,
        learn_weights=True,
        label_learning_rate=5.0,
        weight_learning_rate=5.0,
        device="cpu",
    )
    torch.testing.assert_close(made.labels.sum(-1), torch.ones(10))
    assert made.hard_labels.tolist() == list(range(10))
    assert float(made.weights.sum()) == pytest.approx(len(digits.train), rel=1e-4)
    assert float(made.weights.std()) > 0
    assert float(made.labels.max(-1).values.std()) > 0


def test_seeds_decide_everything(digits: Dataset, experts: Experts) -> None:
    few = {"method_options": QUICK, "iterations": 3, "learning_rate": 1.0, "device": "cpu"}
    first, again, other = (pc.construct(digits, experts, "cd", 1, seed=seed, **few).images for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_saved_coreset_can_be_continued(digits: Dataset, experts: Experts) -> None:
    first = run(digits, experts, Pull()).coreset
    second = run(digits, experts, Pull(), initial=first)
    torch.testing.assert_close(second.coreset.images - 2, (first.images - 2) * 0.9**25, rtol=1e-4, atol=1e-5)


# Without experts.


THROUGH = BPTT(steps=3, horizon=9, chains=2, batch_size=16, step_size=0.2)


def test_a_method_that_needs_no_experts_is_the_same_without_them(digits: Dataset, experts: Experts) -> None:
    settings = {"ipc": 1, "iterations": 3, "learning_rate": 0.1, "device": "cpu"}
    with_experts = pc.construct(digits, experts, THROUGH, **settings)
    without = pc.construct(digits, None, THROUGH, network=experts.network, **settings)
    assert torch.equal(with_experts.images, without.images)
    assert without.network == experts.network.spec


def test_a_network_may_be_named_where_there_are_no_experts(digits: Dataset) -> None:
    made = pc.construct(digits, None, THROUGH, network="mlp:width=8", iterations=1, device="cpu")
    assert made.network is not None
    assert made.network.name == "mlp"


@pytest.mark.parametrize(("method", "said"), [(THROUGH, "which network"), ("cd", "needs experts")])
def test_what_is_missing_without_experts_is_said(digits: Dataset, method: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        pc.construct(digits, None, method, device="cpu")


def test_a_continued_coreset_is_for_the_network_that_it_was_continued_with(digits: Dataset, experts: Experts) -> None:
    other = pc.construct(digits, None, THROUGH, network="mlp:width=8", iterations=1, device="cpu")
    again = pc.construct(digits, experts, THROUGH, initial=other, iterations=1, device="cpu")
    assert again.network == experts.network.spec


# Checkpoints.


@pytest.mark.parametrize("learning", [{"momentum": 0.5}, {"optimiser": "adam"}, {"averaging": 0.9}, {"annealing": 0.8}])
def test_an_interrupted_run_goes_on_to_the_same_end(
    digits: Dataset, experts: Experts, tmp_path: Path, learning: dict[str, Any]
) -> None:
    undisturbed = run(digits, experts, Pull(), **learning)
    checkpoint = tmp_path / "x.checkpoint"
    with pytest.raises(KeyboardInterrupt):
        run(digits, experts, Pull(interrupt_at=14), **learning, checkpoint=checkpoint)
    assert [path.name for path in tmp_path.iterdir()] == ["x.checkpoint"]
    again = _named_alike(Pull(interrupt_at=14), calls=100)
    resumed = run(digits, experts, again, **learning, checkpoint=checkpoint)
    assert again.calls == 115, "iterations 1 to 10 were not repeated"
    assert torch.equal(resumed.coreset.images, undisturbed.coreset.images)
    assert resumed.history == undisturbed.history
    assert checkpoint.exists(), "it stays until the caller has saved the coreset"
    resumed.discard_checkpoint()
    assert not checkpoint.exists()


def _named_alike(method: Pull, calls: int) -> Any:
    """The same settings, so that the checkpoint fits, but past the call that interrupts."""
    object.__setattr__(method, "calls", calls)
    return method


def test_a_checkpoint_that_is_complete_is_only_read(digits: Dataset, experts: Experts, tmp_path: Path) -> None:
    first = run(digits, experts, Pull(), checkpoint=tmp_path / "x")
    method = _named_alike(Pull(), 0)
    second = run(digits, experts, method, checkpoint=tmp_path / "x")
    assert method.calls == 0
    assert torch.equal(first.coreset.images, second.coreset.images)
    assert first.history == second.history


def test_more_iterations_continue_and_fewer_are_refused(digits: Dataset, experts: Experts, tmp_path: Path) -> None:
    run(digits, experts, Pull(), checkpoint=tmp_path / "x")
    longer = run(digits, experts, Pull(), checkpoint=tmp_path / "x", iterations=40)
    assert torch.equal(longer.coreset.images, run(digits, experts, Pull(), iterations=40).coreset.images)
    with pytest.raises(InputError, match="already at iteration 40"):
        run(digits, experts, Pull(), checkpoint=tmp_path / "x", iterations=39)


@pytest.mark.parametrize("change", [{"seed": 1}, {"learning_rate": 0.2}, {"ipc": 2}, {"temperature": 0.5}])
def test_a_checkpoint_of_other_settings_is_refused(
    digits: Dataset, experts: Experts, tmp_path: Path, change: dict[str, Any]
) -> None:
    run(digits, experts, Pull(), checkpoint=tmp_path / "x")
    with pytest.raises(FileFormatError, match="other settings"):
        run(digits, experts, Pull(), checkpoint=tmp_path / "x", **change)


def test_construct_leaves_no_checkpoint(digits: Dataset, experts: Experts, tmp_path: Path) -> None:
    checkpoint = tmp_path / "x.checkpoint"
    few = {"method_options": QUICK, "iterations": 12, "learning_rate": 1.0, "device": "cpu"}
    pc.construct(digits, experts, "cd", 1, checkpoint=checkpoint, checkpoint_seconds=0.0, **few)
    assert list(tmp_path.iterdir()) == []


# Divergence.


def test_a_diverging_run_stops_and_keeps_the_last_good_coreset(
    digits: Dataset, experts: Experts, tmp_path: Path
) -> None:
    good = run(digits, experts, Pull(), iterations=20)
    with pytest.raises(DivergenceError, match=r"lower the learning rate .* of iteration 20, is in"):
        run(digits, experts, Pull(spoil_at=24), checkpoint=tmp_path / "x", rescue=tmp_path / "good.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["good.safetensors"], "and no checkpoint blocks the next try"
    assert torch.equal(pc.Coreset.load(tmp_path / "good.safetensors").images, good.coreset.images)


def test_a_resumed_run_that_diverges_keeps_what_it_resumed(digits: Dataset, experts: Experts, tmp_path: Path) -> None:
    places = {"checkpoint": tmp_path / "x", "rescue": tmp_path / "good.safetensors"}
    method = Pull(spoil_at=24)
    run(digits, experts, method, iterations=20, **places)
    with pytest.raises(DivergenceError, match="of iteration 20"):
        run(digits, experts, _named_alike(Pull(spoil_at=24), 20), **places)
    kept = pc.Coreset.load(tmp_path / "good.safetensors")
    assert torch.equal(kept.images, run(digits, experts, Pull(), iterations=20).coreset.images)


@pytest.mark.parametrize("learning_rate", [1e8, 1e30])
def test_a_learning_rate_that_is_too_high_is_named(digits: Dataset, experts: Experts, learning_rate: float) -> None:
    with pytest.raises(DivergenceError, match=r"lower the learning rate of the images \(now"):
        pc.construct(
            digits, experts, "cd", 1, method_options=QUICK, iterations=30, learning_rate=learning_rate, device="cpu"
        )


# Refusals.


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"ipc": 0}, "'ipc' is a number from 1 to .*; got 0"),
        ({"ipc": -3}, "'ipc' is a number from 1 to .*; got -3"),
        ({"method": "cd1"}, "Did you mean 'cd'"),
        ({"iterations": 0}, "'iterations' is a number from 1"),
        ({"learning_rate": float("nan")}, "'learning_rate' is a number from 1e-30"),
        ({"learning_rate": float("inf")}, "'learning_rate' is a number from 1e-30 to 1e\\+30; got inf"),
        ({"momentum": 1.0}, "momentum"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint-seconds"),
        ({"weights": "some"}, "'full' or 'unit'"),
        ({"initialisation": "randm"}, "Did you mean 'random'"),
        ({"nonsense": 1}, "has no option 'nonsense'"),
        ({"method_options": {"expert_epoch": 1}}, "no option 'expert_epoch'. Did you mean 'expert_epochs'"),
        ({"method_options": {"steps": 2.5}}, "'steps' of the method 'cd' is a whole number; got 2.5"),
        ({"method_options": {"steps": "many"}}, "whole number"),
        ({"method_options": {"kernel": "hcm"}}, "Did you mean 'hmc'"),
        ({"method_options": {"expert_epochs": 9}}, "fewer than expert_epochs = 9"),
        ({"source": None}, "needs experts"),
        ({"device": "mps"}, "must be auto, cpu or cuda"),
    ],
)
def test_bad_settings_are_named(digits: Dataset, experts: Experts, wrong: dict[str, Any], sentence: str) -> None:
    arguments = {"source": experts, "method": "cd", "ipc": 1, "iterations": 2, "learning_rate": 1.0, "device": "cpu"}
    with pytest.raises(InputError, match=sentence):
        pc.construct(digits, **{**arguments, **wrong})  # type: ignore[arg-type]


def test_a_start_of_another_shape_is_refused(digits: Dataset, experts: Experts, coreset: pc.Coreset) -> None:
    wrong = replace(coreset, x=torch.zeros(10, 1, 9, 9))
    with pytest.raises(InputError, match="choose the data set that it was made from"):
        run(digits, experts, Pull(), initial=wrong)


def test_any_object_with_a_loss_is_a_method(digits: Dataset, experts: Experts) -> None:
    made = pc.construct(digits, experts, Pull(), 1, iterations=2, learning_rate=0.1, device="cpu")
    assert made.method == "Pull"
    assert made.configuration["method"]["towards"] == 2.0


def test_methods_are_built_by_name() -> None:
    assert build_method("cd", {"expert_epochs": 0, "sigma": 0}).expert_epochs == 0  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Far(Pull):
    """A method whose loss is large and sensible, and whose energy is what ``energy`` says."""

    energy: float = 1.0

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        loss = super().loss(points, problem, randomness)
        terms = {"distance": loss.value.detach() + 1e6, "energy": loss.value.detach() * 0 + self.energy}
        return Loss(loss.value + 1e6, terms, energies=("energy",))


def test_only_energies_per_datum_tell_that_a_construction_diverged(digits: Dataset, experts: Experts) -> None:
    assert len(run(digits, experts, Far()).history) == 25
    with pytest.raises(DivergenceError, match="energy diverged"):
        run(digits, experts, Far(energy=1e5))


@pytest.mark.parametrize(("annealing", "first"), [(0.5, 20), (0.5, 30), (1.0, 20), (0.0, 20)])
def test_a_resumed_longer_run_anneals_as_an_undisturbed_one(
    digits: Dataset, experts: Experts, tmp_path: Path, annealing: float, first: int
) -> None:
    """The first run ends with its rates at zero; the longer one must not start from there, nor anneal twice."""
    undisturbed = run(digits, experts, Pull(), iterations=60, annealing=annealing, momentum=0.5)
    checkpoint = tmp_path / "x.checkpoint"
    run(digits, experts, Pull(), iterations=first, annealing=annealing, momentum=0.5, checkpoint=checkpoint)
    resumed = run(digits, experts, Pull(), iterations=60, annealing=annealing, momentum=0.5, checkpoint=checkpoint)
    assert torch.equal(resumed.coreset.x, undisturbed.coreset.x)
    assert resumed.history == undisturbed.history


class Plain(GradientMethod):
    """A method that is no dataclass."""

    def __init__(self, towards: float) -> None:
        self.towards = towards

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        return Loss((points.x - self.towards).square().sum() / 2, {})


def test_a_checkpoint_of_another_method_is_refused_though_it_is_no_dataclass(
    digits: Dataset, experts: Experts, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "x.checkpoint"
    one = run(digits, experts, Plain(2.0), checkpoint=checkpoint)
    assert torch.equal(run(digits, experts, Plain(2.0), checkpoint=checkpoint).coreset.x, one.coreset.x)
    with pytest.raises(FileFormatError, match="other settings"):
        run(digits, experts, Plain(3.0), checkpoint=checkpoint)
    assert one.coreset.configuration["method"] == {"towards": 2.0}


def test_a_construction_may_start_from_noise(digits: Dataset) -> None:
    """Standard normal in the model's input space, with as many images of each class, the same for the same seed."""
    settings = ConstructionSettings(ipc=3, iterations=1, initialisation="noise", seed=4)
    starts = [
        run_construction(
            digits, None, "dm", DistributionMatching(4), each, network="convnet:width=4", device="cpu"
        ).initial
        for each in (settings, settings, replace(settings, seed=5))
    ]
    x = starts[0].x
    assert starts[0].y.bincount().tolist() == [3] * 10
    assert abs(float(x.mean())) < 5 / x.numel() ** 0.5
    assert float(x.var()) == pytest.approx(1, abs=5 * (2 / x.numel()) ** 0.5)
    assert torch.equal(x, starts[1].x)
    assert not torch.equal(x, starts[2].x)


def test_faint_noise_has_images_of_unit_norm(digits: Dataset) -> None:
    loud, faint = (
        real_coreset(digits, ConstructionSettings(ipc=2, initialisation=name), None, "bptt").x.flatten(1)
        for name in ("noise", "faint-noise")
    )
    assert torch.allclose(faint * loud.norm(dim=1, keepdim=True), loud)
    assert torch.allclose(faint.norm(dim=1), torch.ones(len(faint)))
