"""Dataset and label distillation: loss and gradient against plain unrolled training, and what each of them learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from methods_problems import DOUBLE, GaussianModel, gaussian_points, gradients, network_points, network_problem
from small import Invoke
from torch import Tensor
from torch.func import functional_call

import pseudocoresets as pc
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.methods import DatasetDistillation, LabelDistillation, Points, Problem, RealData
from pseudocoresets.methods.condensation.dataset_distillation import step_parts
from pseudocoresets.methods.estimator import fresh_parameters, network_of
from pseudocoresets.workflows.reproduce.cells import VARIANTS

REAL, SEED = 40, 3


def problem_with_real_data() -> Problem:
    generator = torch.Generator().manual_seed(0)
    real = RealData(torch.randn(REAL, 1, 8, 8, generator=generator, dtype=DOUBLE), torch.arange(REAL) % 3, lambda x: x)
    return replace(network_problem(), source=None, real_data=lambda: real)


def plain_training(
    points: Points,
    problem: Problem,
    batches: list[list[int]],
    sizes: Tensor,
    between: Callable[[Randomness], object] = lambda randomness: None,
) -> Tensor:
    """SGD from a fresh initialisation with its graph kept, one batch a step, and the real data's loss at the end.

    ``between`` draws what the method draws between its initialisation and its real batch.
    """
    network, randomness = network_of(problem, "plain"), Randomness.for_purpose(SEED)
    assert problem.real_data is not None
    theta = fresh_parameters(network, 1, points.x, randomness)[0].requires_grad_()
    between(randomness)
    x, y = problem.real_data().batch(16, randomness)
    module = network.module(theta).double()
    for batch, size in zip(batches, sizes, strict=True):
        logits = functional_call(module, network.unflatten(theta), (points.x[batch],))
        losses = -(points.y[batch] * logits.log_softmax(-1)).sum(-1)
        loss = 6 / len(batch) * (points.weights[batch] * losses).sum() / 100 + theta.square().sum() / 2 / 100
        theta = theta - size * torch.autograd.grad(loss, theta, create_graph=True)[0]
    logits = functional_call(module, network.unflatten(theta), (x,))
    return torch.nn.functional.cross_entropy(logits, y)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Equal up to the order of summation in double precision."""
    assert set(found) == set(wanted)
    for name, gradient in wanted.items():
        scale = float(gradient.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-11 * scale)


@pytest.mark.parametrize("gradient", ["stored", "exact"])
def test_dataset_distillation_is_plain_training_differentiated(gradient: str) -> None:
    """In images, labels, weights and each of six step sizes; two images per class and three steps, twice."""
    sizes = (0.1, 0.2, 0.05, 0.15, 0.1, 0.3)
    problem, points = problem_with_real_data(), network_points(step_size=sizes)
    order = torch.tensor([0, 1, 2, 0, 1, 2])
    soft = (0.8 * torch.nn.functional.one_hot(order, 3) + 0.2 / 3).to(DOUBLE).requires_grad_()
    points = replace(points, y=soft)
    method = DatasetDistillation(steps=3, epochs=2, batch_size=16, gradient=gradient)
    loss = method.loss(points, problem, Randomness.for_purpose(SEED)).value
    first, second = [0, 1, 2], [3, 4, 5]
    batches = 2 * [first, second, first]
    expected = plain_training(points, problem, batches, points.hyperparameters["step_size"])
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_same(gradients(loss, points), gradients(expected, points))


def test_steps_of_an_epoch_see_every_image_once_and_all_classes() -> None:
    labels = torch.arange(3).repeat_interleave(5)
    points = Points(torch.zeros(15, 1), labels, torch.ones(15))
    parts = step_parts(points, 4)
    assert sorted(torch.cat(parts).tolist()) == list(range(15))
    assert [labels[part].tolist() for part in parts] == [[0, 0, 1, 1, 2, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    one_each = Points(torch.zeros(3, 1), torch.arange(3), torch.ones(3))
    assert [part.tolist() for part in step_parts(one_each, 2)] == [[0, 1, 2], [0, 1, 2]]


def test_label_distillation_is_plain_training_differentiated_in_the_labels() -> None:
    problem, points = problem_with_real_data(), network_points()
    points = replace(points, x=points.x.detach(), weights=points.weights.detach())
    method = LabelDistillation(steps=4, step_size=0.1, batch_size=16)
    loss = method.loss(points, problem, Randomness.for_purpose(SEED)).value

    def choice_and_restart(randomness: Randomness) -> None:
        torch.rand(method.chains, generator=randomness.device)
        torch.rand(method.unrolls, 1, generator=randomness.device)
        fresh_parameters(network_of(problem, "plain"), method.unrolls, points.x, randomness)

    sizes = torch.full((4,), 0.1, dtype=DOUBLE)
    expected = plain_training(points, problem, 4 * [list(range(6))], sizes, choice_and_restart)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_same(gradients(loss, points), gradients(expected, points))


def test_steps_of_the_published_label_distillation_see_half_of_the_images() -> None:
    assert pc.preset("paper", "cifar10", 10).method_options("ld") == {"points_per_step": 50}
    assert pc.preset("paper", "cifar10", 1).method_options("ld") == {}


def test_label_distillation_learns_labels_and_leaves_the_images(digits: Dataset) -> None:
    how = {"network": "mlp:depth=1,width=16", "device": "cpu", "method_options": {"batch_size": 64}}
    made = pc.construct(digits, None, "ld", 1, iterations=3, **how)
    start = pc.construct(digits, None, "random", 1, **how | {"method_options": None})
    assert torch.equal(made.images, start.images)
    assert made.labels_learned
    assert not start.labels_learned
    torch.testing.assert_close(made.labels.sum(1), torch.ones(10))
    with pytest.raises(InputError, match="'ld' learns labels and no images"):
        pc.construct(digits, None, "ld", 1, iterations=1, learn_labels=False, **how)


def test_dataset_distillation_lowers_the_loss_and_records_its_step_sizes(digits: Dataset) -> None:
    method = DatasetDistillation(steps=2, epochs=2, step_size=1.0, step_size_learning_rate=0.01, batch_size=64)
    settings = ConstructionSettings(optimiser="adam", learning_rate=0.2, iterations=30, augment=False)
    made = run_construction(digits, None, "dd", method, settings, network="mlp:depth=1,width=16", device="cpu")
    losses = [row["loss"] for row in made.history]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    learned = made.coreset.configuration["learned"]["step_size"]
    assert len(learned) == 4
    assert len(set(learned)) == 4
    assert all(size > 0 for size in learned)


@pytest.mark.parametrize("method", [DatasetDistillation(), LabelDistillation()])
def test_what_is_missing_is_named(method: DatasetDistillation | LabelDistillation) -> None:
    extras = {"step_size": (0.1,) * 30} if method.name == "dd" else {}
    problem, points, randomness = problem_with_real_data(), network_points(**extras), Randomness.for_purpose(0)
    with pytest.raises(InputError, match=f"'{method.name}' needs the real data"):
        method.loss(points, replace(problem, real_data=None), randomness)
    other = replace(problem, energy=Energy(GaussianModel(), 40))
    with pytest.raises(InputError, match=f"'{method.name}' starts from a network's initialisation"):
        method.loss(replace(gaussian_points(), hyperparameters=points.hyperparameters), other, randomness)
    with pytest.raises(InputError, match="steps >= 1"):
        replace(method, steps=0)


def test_every_table_says_that_labels_were_learned(tmp_path: Path, bpc: Invoke) -> None:
    """The comparison, the run, its evaluation and its report, and the paper's tables."""
    assert VARIANTS["ld"].title == "ld (labels learned)"
    assert VARIANTS["dd"].title == "dd"
    small = ["--network", "mlp:depth=1,width=8", "--device", "cpu", "--sampling-steps", "4", "--chains", "1"]
    small += ["--samples", "1", "--iterations", "1"]
    compared = bpc("compare", "--methods", "ld,dd", "--out", "compare", *small)
    assert compared.exit_code == 0, compared.output
    table = (tmp_path / "compare" / "comparison.md").read_text()
    assert "| ld (labels learned) |" in table
    assert "| dd |" in table
    ran = bpc("run", "--method", "ld", "--out", "run", *small, "--json")
    assert json.loads(ran.stdout)["labels_learned"]
    assert "ld (labels learned)" in (tmp_path / "run" / "report.html").read_text()
    judged = bpc("evaluate", "run/coreset.safetensors", *small[2:-2], "--json")
    assert json.loads(judged.stdout)["labels_learned"]
