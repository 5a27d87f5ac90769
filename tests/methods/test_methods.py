"""Every construction method by name: runs, repeats, resumes, takes learnable labels and weights, has presets."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from methods_problems import gradients, network_points, network_problem

from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.errors import InputError, RenamedWarning
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import load_dataset
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.gradients import Differences, build_gradient
from pseudocoresets.kernels import SGHMC, build_kernel
from pseudocoresets.methods import BPTT, METHODS, ContrastiveDivergence, GradientMethod, Problem, RealData, build_method
from pseudocoresets.presets import PRESETS
from pseudocoresets.presets import preset as preset_for
from pseudocoresets.sources.experts import Experts, train_experts
from pseudocoresets.workflows.plan import make_plan

SMALL: dict[str, dict[str, Any]] = {
    "cd": {"expert_epochs": 1, "steps": 2},
    "pcd": {"chains": 1, "kernel": "hmc:leapfrog_steps=2", "step_size": 0.01},
    "fkl": {"steps": 2, "samples": 2},
    "rkl": {"steps": 2, "samples": 3, "batch_size": 16},
    "wasserstein": {"steps": 2},
    "cd-wasserstein": {"expert_epochs": 1, "steps": 2},
    "fkl-hmc": {"expert_epochs": 1, "steps": 2, "samples": 2, "burn_in": 1, "leapfrog_steps": 2},
    "fkl-kfl": {"steps": 2, "samples": 2},
    "psvi": {"steps": 2, "samples": 3, "langevin_steps": 1, "batch_size": 16},
    "black-box-vi": {"steps": 2, "fit_steps": 2, "samples": 3, "batch_size": 16},
    "bptt": {"steps": 2, "horizon": 6, "chains": 2, "batch_size": 16},
    "dm": {"batch_size": 16},
    "gm": {"batch_size": 16, "matches": 3, "epochs": 2},
    "dsa": {"batch_size": 16, "matches": 3, "epochs": 2},
    "cafe": {"batch_size": 16, "watched_images": 8, "most_epochs": 2},
    "cafe-dsa": {"batch_size": 16, "watched_images": 8, "most_epochs": 2},
    "mtt": {"steps": 2},
    "dd": {"steps": 2, "epochs": 2, "batch_size": 16},
    "kip": {"batch_size": 4},
    "ld": {"steps": 2, "horizon": 6, "batch_size": 16},
}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", "unused").holding_out(0.2)


@pytest.fixture(scope="module")
def experts(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Experts:
    folder = tmp_path_factory.mktemp("experts")
    return train_experts(digits, "convnet:width=4", 2, out=folder, epochs=2, batch_size=256, device="cpu")


def test_every_method_is_tested_here() -> None:
    by_gradient = {name for name in METHODS if isinstance(build_method(name), GradientMethod)}
    assert set(SMALL) == by_gradient


@pytest.mark.parametrize("name", sorted(SMALL))
def test_gradient_reaches_everything_learned_and_repeats(name: str) -> None:
    """Images, soft labels and weights; the same randomness gives the same numbers."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(20, 1, 8, 8, generator=generator, dtype=torch.float64)
    real = RealData(images, torch.arange(20) % 3, lambda x: x)
    base = network_problem(chains=1, augmentation=dsa(flippable=False))
    problem = Problem(base.energy, base.source, lambda: real, base.augmentation)
    method = METHODS[name](**SMALL[name])
    points = network_points(**{key: extra.value for key, extra in method.hyperparameters().items()})
    found = []
    for _ in range(2):
        loss = method.loss(points, problem, Randomness.for_purpose(3))
        found.append((loss.value.detach(), gradients(loss.value, points)))
    assert set(found[0][1]) == {"x", "y", "weights", *method.hyperparameters()}
    for key, gradient in found[0][1].items():
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0, key
        assert torch.equal(gradient, found[1][1][key])
    assert torch.equal(found[0][0], found[1][0])


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_killed_construction_goes_on_to_the_same_coreset(
    name: str, digits: Dataset, experts: Experts, tmp_path: Path
) -> None:
    """With labels and weights learned too, to the last bit."""
    method = build_method(name, SMALL[name])

    def settings(iterations: int) -> ConstructionSettings:
        rate = 0.1 if name in ("rkl", "psvi", "black-box-vi") else 10.0
        return ConstructionSettings(
            iterations=iterations, learning_rate=rate, momentum=0.5, learn_labels=True, learn_weights=True
        )

    whole = run_construction(digits, experts, name, method, settings(4), device="cpu")
    checkpoint = tmp_path / "checkpoint"
    arguments: dict[str, Any] = {"checkpoint": checkpoint, "checkpoint_seconds": 0.0, "device": "cpu"}
    run_construction(digits, experts, name, method, settings(2), **arguments)
    assert checkpoint.exists()
    resumed = run_construction(digits, experts, name, method, settings(4), **arguments)
    assert torch.equal(resumed.coreset.images, whole.coreset.images)
    assert torch.equal(resumed.coreset.labels, whole.coreset.labels)
    assert torch.equal(resumed.coreset.weights, whole.coreset.weights)
    assert torch.equal(whole.coreset.images, whole.initial.images) != method.learns_points
    assert not torch.equal(whole.coreset.labels, torch.nn.functional.one_hot(whole.initial.labels, 10))
    assert not torch.equal(whole.coreset.weights, whole.initial.weights)
    assert whole.history == resumed.history


def test_psvi_learns_weights_unless_told_not_to(digits: Dataset, experts: Experts) -> None:
    method = build_method("psvi", SMALL["psvi"])
    for choice, learned in ((None, True), (False, False)):
        settings = ConstructionSettings(iterations=1, learning_rate=0.1, learn_weights=choice)
        made = run_construction(digits, experts, "psvi", method, settings, device="cpu")
        assert torch.equal(made.coreset.weights, made.initial.weights) != learned
        assert float(made.coreset.weights.sum()) == pytest.approx(len(digits.train), rel=1e-5)


def test_learned_step_size_is_recorded_and_stays_positive(digits: Dataset, experts: Experts) -> None:
    """One step against a gradient that is far too large for it goes below zero, unless it is kept from that."""
    for rate, sound in ((1e-7, True), (1e6, False)):
        method = build_method("wasserstein", {"steps": 2, "step_size_learning_rate": rate, "step_size": 0.5})
        settings = ConstructionSettings(iterations=1, learning_rate=1e-3)
        made = run_construction(digits, experts, "wasserstein", method, settings, device="cpu")
        learned = made.coreset.configuration["learned"]["step_size"]
        assert learned > 0
        assert learned != pytest.approx(0.5, rel=1e-9)
        assert (abs(learned - 0.5) < 0.1) == sound


@pytest.mark.parametrize("kernel", ["langevin", "sghmc:momentum_decay=0.5", "hmc:leapfrog_steps=2", "mala"])
def test_contrastive_divergence_takes_other_kernels(kernel: str) -> None:
    """The negative phase differs from kernel to kernel, and an adjusted one sees a fixed potential."""
    problem = network_problem(chains=2, augmentation=dsa(flippable=False))
    method = ContrastiveDivergence(expert_epochs=1, chains=2, steps=3, kernel=kernel, step_size=0.05)
    points = network_points()
    start = problem.source.draw(2, None, 1, Randomness.for_purpose(0)).start
    negative = method.sample_phases(points, problem, Randomness.for_purpose(0)).negative
    assert torch.isfinite(negative).all()
    assert (negative - start).norm(dim=1).min() > 0.01
    assert all(
        g.abs().max() > 0
        for g in gradients(method.loss(points, problem, Randomness.for_purpose(0)).value, points).values()
    )


def test_a_kernel_is_a_name_or_an_object_with_a_step_size_of_its_own() -> None:
    problem, points = network_problem(chains=2), network_points()

    def negative(**options: Any) -> torch.Tensor:
        method = ContrastiveDivergence(expert_epochs=1, chains=2, steps=3, **options)
        return method.sample_phases(points, problem, Randomness.for_purpose(0)).negative

    named = negative(kernel="sghmc:momentum_decay=0.5", step_size=0.05)
    assert torch.equal(negative(kernel=SGHMC(0.05, 0.5), step_size=9.0), named)
    learned = ContrastiveDivergence(kernel=SGHMC(0.05, 0.5), step_size_learning_rate=1e-4)
    assert learned.hyperparameters() == {"step_size": (0.05, 1e-4)}


def test_what_is_recorded_of_a_method_builds_it_again() -> None:
    """Parts that are objects are written as the text that names them."""
    method = BPTT(gradient=Differences(1.5), unrolls=2)
    recorded = json.loads(json.dumps(method.options()))
    assert recorded["gradient"] == "differences:radius=1.5,states=32"
    again = build_method("bptt", recorded)
    assert again == replace(method, gradient=recorded["gradient"])
    assert build_gradient(recorded["gradient"]) == method.gradient
    kernel = ContrastiveDivergence(kernel=SGHMC(0.05, 0.5)).options()["kernel"]
    assert build_kernel(kernel, 1.0) == SGHMC(0.05, 0.5)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("cd", {"ahead": 3, "latest_start": 7}, {"expert_epochs": 3, "max_start_epoch": 7}),
        ("bptt", {"windows": 2, "reach": 3.0}, {"unrolls": 2, "gradient": "differences:radius=3.0"}),
        ("bptt", {"gradient": "constant-memory", "reach": 3.0}, {"gradient": "stored"}),
        ("wasserstein", {"gradient": "unrolled", "stored": 8}, {"gradient": "exact"}),
        ("wasserstein", {"gradient": "detached", "stored": 8}, {"gradient": "detached:states=8"}),
    ],
)
def test_old_option_names_work_with_a_warning(name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    with pytest.warns(RenamedWarning, match=f"'{name}' have new names"):
        method = build_method(name, old)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert method == build_method(name, new)


def test_unknown_kernel_or_option_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="options of a sampler are written NAME:key=value"):
        ContrastiveDivergence(kernel="hmc:leapfrog_steps")
    with pytest.raises(InputError, match="options of a gradient are written NAME:key=value"):
        BPTT(gradient="differences:0.3")
    with pytest.raises(InputError, match="Did you mean 'differences'"):
        BPTT(gradient="difference")
    with pytest.raises(InputError, match="Did you mean 'langevin'"):
        ContrastiveDivergence(kernel="langevn")
    with pytest.raises(InputError, match="has no option 'leaps'"):
        ContrastiveDivergence(kernel="hmc:leaps=3")


@pytest.mark.parametrize("dataset", ["digits", "fashion-mnist", "cifar100"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("ipc", [1, 10, 50])
def test_presets_have_valid_settings_for_every_method(dataset: str, preset: str, ipc: int) -> None:
    chosen = preset_for(preset, dataset, ipc)
    for name in SMALL:
        plan = make_plan(
            dataset=dataset, method=name, network="convnet", ipc=ipc, protocol="cold", sampler="langevin",
            preset=preset, seed=0,
        )  # fmt: skip
        method = build_method(name, plan.method_options)
        last = getattr(method, "expert_epochs", 0)
        assert last <= chosen.experts["epochs"]
        assert plan.construction.learning_rate == chosen.construction_for(name)["learning_rate"]
