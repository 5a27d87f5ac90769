"""The fast path on a GPU agrees with the plain one; run by ``make test-gpu`` on a machine with a CUDA device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from pseudocoresets.backends import Backend, ChainPlan, PlainBackend, choose_backend
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.energy import Energy, uniform_weights
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import Draw
from pseudocoresets.core.state import at_rest
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.data.augmentation import Augmentation, dsa
from pseudocoresets.inference.sampling import sample_posterior
from pseudocoresets.kernels import SGD, SGHMC, AnyKernel, Drop, Langevin, PreconditionedSGHMC
from pseudocoresets.methods import (
    BPTT,
    ContrastiveDivergence,
    DatasetDistillation,
    DistributionMatching,
    FeatureAlignment,
    GradientMatching,
    GradientMethod,
    Points,
    Problem,
    RealData,
    SiameseFeatureAlignment,
    SiameseGradientMatching,
    Wasserstein,
    build_method,
)
from pseudocoresets.methods.condensation.classes import class_gradients
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts import train_experts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

FusedBackend: Any = pytest.importorskip("pseudocoresets.backends.fused", exc_type=ImportError).FusedBackend

BFLOAT16_GRADIENT = 0.1
"""Relative: bfloat16 keeps 8 bits, and autograd in bfloat16 itself is 0.06 to 0.08 away from float32 here."""
STANDARD_ERRORS = 4


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture
def network() -> Network:
    return build_network("convnet:depth=3,width=128", (3, 32, 32), 10)


@pytest.fixture
def points() -> Points:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(20, 3, 32, 32, generator=generator, device="cuda")
    return Points(x, torch.arange(20, device="cuda") % 10, uniform_weights(20, 1000, "cuda"))


def problem_for(network: Network, fused: bool, augmentation: Augmentation | None) -> Problem:
    energy = Energy(Classifier(network), data_size=1000)
    backend: Backend = FusedBackend("cuda") if fused else PlainBackend()
    return Problem(energy, augmentation=augmentation, backend=backend)


def test_the_fused_backend_is_chosen_on_a_gpu() -> None:
    assert isinstance(choose_backend("cuda"), FusedBackend)
    assert type(choose_backend("cuda", "float32")) is PlainBackend


def test_image_gradients_agree_to_rounding(network: Network, points: Points) -> None:
    thetas = network.initialise(0, 3, "cuda")
    gradients = []
    for fused in (False, True):
        x = points.x.clone().requires_grad_()
        energies = problem_for(network, fused, None).energies(thetas, x, points)
        weights = torch.tensor([1.0, -0.5, 2.0], device="cuda")
        gradients.append(torch.autograd.grad((weights * energies).sum(), x)[0])
    plain, fast = gradients
    assert (fast - plain).norm() / plain.norm() < BFLOAT16_GRADIENT


def test_energies_of_real_data_and_their_gradients_agree_to_rounding(network: Network, points: Points) -> None:
    thetas = network.initialise(0, 3, "cuda")
    problems = [problem_for(network, fused, None) for fused in (False, True)]
    plain, fast = (problem.real_gradients(thetas, points.x, points.y) for problem in problems)
    assert ((fast.energies / plain.energies) - 1).abs().max() < BFLOAT16_GRADIENT
    assert ((fast.gradients - plain.gradients).norm(dim=1) / plain.gradients.norm(dim=1)).max() < BFLOAT16_GRADIENT
    without = problems[1].real_energies(thetas, points.x, points.y)
    assert ((without / plain.energies) - 1).abs().max() < BFLOAT16_GRADIENT


def test_features_of_all_layers_and_their_image_gradient_agree_to_rounding(network: Network, points: Points) -> None:
    theta, found = network.initialise(0, device="cuda"), []
    for fused in (False, True):
        x = points.x.clone().requires_grad_()
        layers = problem_for(network, fused, None).backend.layer_features(network, theta, x)
        loss = sum((layer.square().sum() for layer in layers), x.new_zeros(()))
        found.append([*(layer.detach() for layer in layers), torch.autograd.grad(loss, x)[0]])
    for plain, fast in zip(*found, strict=True):
        assert (fast - plain).norm() / plain.norm() < BFLOAT16_GRADIENT


def test_a_captured_piece_is_the_work_with_other_tensors_and_other_draws() -> None:
    """A product with uniform numbers of the device's stream, and one of the host's."""

    def work(given: Mapping[str, torch.Tensor], randomness: Randomness) -> Mapping[str, torch.Tensor]:
        uniform = torch.rand(4, generator=randomness.device, device="cuda")
        drawn = randomness.tensor(lambda host: torch.full((1,), host.random(), device="cuda"))
        return {"product": given["x"] * uniform + drawn}

    results = []
    for backend in (PlainBackend(), FusedBackend("cuda")):
        problem = Problem(Energy(Classifier(build_network("convnet", (1, 8, 8), 10)), 10), backend=backend)
        randomness = Randomness.for_purpose(0, device="cuda")
        for iteration in range(8):
            randomness.reseed(iteration)
            x = torch.full((4,), float(iteration), device="cuda")
            results.append(problem.repeated("product", work, {"x": x}, randomness)["product"])
    assert torch.equal(torch.stack(results[:8]), torch.stack(results[8:]))


def test_gradients_of_all_classes_are_differentiated_to_rounding(
    network: Network, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Second derivatives in float32 and float64, of the gradients of twenty images in ten classes.

    A rounding of 1e-6 switches a share of 0.4 * 2e-6 of the units, whose inputs have the density 0.4 at zero, and each
    changes its own part of the gradient altogether: the square root of that share of its norm, and five times for all
    layers above. (TF32's rounding of 5e-4 gives 0.02, and 0.028 was seen.)
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    theta = network.initialise(0, device="cuda")
    found = []
    for dtype in (torch.float64, torch.float32):
        x = points.x.to(dtype, copy=True).requires_grad_()
        half = torch.full((2,), 0.5, device="cuda", dtype=dtype)
        groups = [Points(x[c::10], points.y[c::10], half) for c in range(10)]
        gradients = class_gradients(network, theta.to(dtype), groups)
        size = sum((each.square().sum() for each in gradients), half.new_zeros(()))
        found.append((size.detach(), torch.autograd.grad(size, x)[0]))
    (precise, of_precise), (single, of_single) = found
    assert (single - precise).abs() / precise < 1e-4
    assert (of_single - of_precise).norm() / of_precise.norm() < 5 * math.sqrt(0.8e-6)


@pytest.mark.parametrize("name", ["dm", "gm", "dsa", "cafe", "cafe-dsa"])
def test_condensation_runs_on_the_fast_path(name: str, network: Network, points: Points) -> None:
    """Three iterations, in which networks are trained; the first loss agrees with that of the plain path."""
    images = torch.randn(200, 3, 32, 32, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    real = RealData(images, torch.arange(200, device="cuda") % 10, lambda given: given)
    method, losses = build_method(name), []
    assert isinstance(method, GradientMethod)
    for fused in (False, True):
        problem = replace(problem_for(network, fused, Augmentation(("flip",))), real_data=lambda: real)
        given = replace(points, x=points.x.clone().requires_grad_())
        for iteration in range(3):
            loss = method.loss(given, problem, Randomness.for_purpose(iteration, device="cuda"))
            if iteration == 0:
                losses.append(loss.value.detach())
            assert torch.isfinite(torch.autograd.grad(loss.value, given.x)[0]).all()
            given = replace(given, state=loss.state)
    assert abs(losses[1] / losses[0] - 1) < BFLOAT16_GRADIENT


def test_one_noiseless_step_agrees_to_rounding(network: Network, points: Points) -> None:
    start = network.initialise(0, 2, "cuda")
    moves = []
    for fused in (False, True):
        problem = problem_for(network, fused, None)
        randomness = Randomness.for_purpose(0, "step", device="cuda")
        moves.append(problem.run_chain(Langevin(0.1), start, points, 1, randomness, noisy=False) - start)
    plain, fast = moves
    assert (fast - plain).norm() / plain.norm() < BFLOAT16_GRADIENT


@pytest.mark.parametrize(
    ("kernel", "schedule"),
    [
        (SGHMC(0.02), None),
        (PreconditionedSGHMC(0.02), None),
        (SGD(0.01, 0.9), None),
        (SGD(0.01, 0.9), Drop(3)),
        (Langevin(0.1), Drop(2)),
    ],
)
def test_every_fused_kernel_agrees_with_itself(
    network: Network, points: Points, kernel: AnyKernel, schedule: Drop | None
) -> None:
    """Four noiseless steps in blocks of two, kept in the middle and at the end."""
    start, energy = network.initialise(0, 2, "cuda"), Energy(Classifier(network), data_size=1000)
    plan = ChainPlan(kernel, energy, points, 4, noisy=False, schedule=schedule, keep_at={2, 4})
    plain, fast = (
        backend.run_chain(plan, start, Randomness.for_purpose(0, "kernel", device="cuda"))
        for backend in (PlainBackend(), FusedBackend("cuda"))
    )
    moved = (plain - start).norm(dim=-1)
    assert ((fast - plain).norm(dim=-1) < BFLOAT16_GRADIENT * moved).all()


def test_captured_chains_are_used_again(network: Network, points: Points) -> None:
    """A network built again computes the same function, so that it needs no capture of its own."""
    problem = problem_for(network, True, None)
    again = replace(problem, energy=Energy(Classifier(build_network(str(network.spec), network.spec.shape, 10)), 1000))
    for each in (problem, problem, again):
        randomness = Randomness.for_purpose(0, "again", device="cuda")
        each.run_chain(Langevin(0.1), network.initialise(0, 2, "cuda"), points, 2, randomness)
    assert isinstance(problem.backend, FusedBackend)
    assert len(problem.backend._chains) == 1


def test_scheduled_steps_agree_to_rounding(digits: Dataset) -> None:
    """Six steps of SGHMC, nearly without noise, each with a step size of its own.

    Two blocks, because a third would normalise 2 x 2 pixels: there autograd in bfloat16 itself is 0.14 away.
    """
    spec = build_network("convnet:depth=2,width=128", digits.shape, 10).spec
    coreset = real_coreset(digits, ConstructionSettings(ipc=2), spec, "random")
    settings = {"sampler": "sghmc", "schedule": "cosine", "steps": 6, "samples": 6, "burn_in": 0.0, "chains": 2}
    paths = []
    for precision in ("float32", "auto"):
        backend = choose_backend("cuda", precision)
        kept = sample_posterior(
            coreset, device="cuda", backend=backend, step_size=0.02, temperature=1e-12, augment=False, **settings
        )
        paths.append(kept.parameters)
    plain, fast = paths
    length = plain.diff(dim=1).norm(dim=-1).sum(1)
    assert ((fast - plain)[:, -1].norm(dim=-1) < BFLOAT16_GRADIENT * length).all()


def test_noise_has_the_kernels_deviation(network: Network, points: Points) -> None:
    start = network.initialise(0, 4, "cuda")
    problem = problem_for(network, True, None)
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


def test_chain_statistics_agree_within_monte_carlo_error(network: Network, points: Points) -> None:
    """Energy on the points after 60 augmented steps, over 16 chains each way."""
    start = network.initialise(3, device="cuda").expand(16, -1).contiguous()
    found = []
    for fused in (False, True):
        problem = problem_for(network, fused, dsa(flippable=True))
        randomness = Randomness.for_purpose(1, "chain", fused, device="cuda")
        ends = torch.cat([problem.run_chain(Langevin(0.05), part, points, 60, randomness) for part in start.split(4)])
        with torch.no_grad():
            found.append(problem_for(network, False, None).energies(ends, points.x, points))
    plain, fast = found
    error = math.sqrt(float(plain.var() + fast.var()) / 16)
    # Chains of one population share their augmentations, so that 4 populations, not 16 chains, are independent.
    assert abs(float(plain.mean() - fast.mean())) < STANDARD_ERRORS * 2 * error


@pytest.mark.parametrize(("steps", "images"), [(10, 20), (20, 500)])
def test_matched_trajectories_agree_to_rounding(network: Network, steps: int, images: int) -> None:
    """One block and several, against the same differences in float32."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(images, 3, 32, 32, generator=generator, device="cuda")
    labels = torch.arange(images, device="cuda") % 10
    start = network.initialise(0, 2, "cuda")
    teacher = Points(
        torch.randn(images, 3, 32, 32, generator=generator, device="cuda"), labels, torch.ones(images).cuda()
    )
    randomness = Randomness.for_purpose(0, "teacher", device="cuda")
    later = problem_for(network, False, None).run_chain(
        Langevin(0.1), start, teacher, 2 * steps, randomness, noisy=False
    )
    found = []
    for fused in (False, True):
        leaf = x.clone().requires_grad_()
        step_size = torch.tensor(0.05, device="cuda", requires_grad=True)
        points = Points(leaf, labels, uniform_weights(images, 1000, "cuda"), {"step_size": step_size})
        match = Wasserstein(steps=steps, chains=2, gradient="differences").match(
            points,
            problem_for(network, fused, None),
            Draw(start, later),
            Randomness.for_purpose(0, "match", device="cuda"),
        )
        found.append((match.end.position, match.loss.detach(), *torch.autograd.grad(match.loss, [leaf, step_size])))
    (plain_end, plain_loss, plain, plain_rate), (fast_end, fast_loss, fast, fast_rate) = found
    assert (fast_end - plain_end).norm() / (plain_end - start).norm() < BFLOAT16_GRADIENT
    assert abs(float(fast_loss / plain_loss) - 1) < BFLOAT16_GRADIENT
    assert float((fast * plain).sum() / fast.norm() / plain.norm()) > 1 - BFLOAT16_GRADIENT
    # The plain path's slope is a difference of two energies, the fast one's a product: each may be off by as much.
    assert abs(float(fast_rate / plain_rate) - 1) < 2 * BFLOAT16_GRADIENT


@pytest.mark.parametrize("blocks", [1, 2])
def test_unrolls_with_momentum_agree_to_rounding(
    network: Network, points: Points, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two moving chains, over one block and over two, against the same differences in float32.

    In bfloat16 by autograd the ends, velocities and gradients are 0.02 to 0.03 away; without the velocity at the start
    the end is 0.2 away, and without momentum in the adjoint the gradient has a third of its norm.
    """
    steps, momentum, batch = 10, 0.9, 64
    monkeypatch.setattr(FusedBackend, "_trajectory_block_length", lambda *_: steps // blocks)
    generator = torch.Generator("cuda").manual_seed(1)
    images = torch.randn(batch, 3, 32, 32, generator=generator, device="cuda")
    real = RealData(images, torch.arange(batch, device="cuda") % 10, lambda x: x)
    points = replace(points, hyperparameters={"step_size": torch.tensor(0.01, device="cuda")})
    randomness = Randomness.for_purpose(0, "start", device="cuda")
    cold = at_rest(network.initialise(0, 2, "cuda"))
    ahead = problem_for(network, False, None).descent(points, 2, momentum=momentum)
    start = PlainBackend().trajectory(ahead, 2, 2, randomness).run(cold)
    method = BPTT(steps=steps, unrolls=2, batch_size=batch, momentum=momentum)
    found = []
    for fused in (False, True):
        leaf = points.x.clone().requires_grad_()
        step_size = points.hyperparameters["step_size"].clone().requires_grad_()
        outcome = method.descend(
            replace(points, x=leaf, hyperparameters={"step_size": step_size}),
            replace(problem_for(network, fused, None), real_data=lambda: real),
            start,
            Randomness.for_purpose(0, "window", device="cuda"),
        )
        found.append((outcome.end, outcome.loss.detach(), *torch.autograd.grad(outcome.loss, [leaf, step_size])))
    (plain_end, plain_loss, plain, plain_rate), (fast_end, fast_loss, fast, fast_rate) = found
    moved = (plain_end.position - start.position).norm()
    assert (fast_end.position - plain_end.position).norm() / moved < BFLOAT16_GRADIENT
    assert (fast_end.velocity - plain_end.velocity).norm() / plain_end.velocity.norm() < BFLOAT16_GRADIENT
    assert abs(float(fast_loss / plain_loss) - 1) < BFLOAT16_GRADIENT
    assert float((fast * plain).sum() / fast.norm() / plain.norm()) > 1 - BFLOAT16_GRADIENT
    assert abs(float(fast.norm() / plain.norm()) - 1) < BFLOAT16_GRADIENT
    # The real data's gradients, from which lambda comes, and the steps' own may each be off by as much.
    assert abs(float(fast_rate / plain_rate) - 1) < 2 * BFLOAT16_GRADIENT


def test_predictions_agree(network: Network, points: Points) -> None:
    thetas = network.initialise(0, 2, "cuda")
    with torch.no_grad():
        plain, fast = (
            backend.probabilities(network, thetas, points.x) for backend in (PlainBackend(), FusedBackend("cuda"))
        )
    assert (fast - plain).abs().max() < 0.02


def test_experts_learn_the_same(digits: Dataset) -> None:
    accuracies = []
    for precision in ("float32", "auto"):
        backend = choose_backend("cuda", precision)
        network = build_network("convnet:width=32", digits.shape, 10)
        experts = train_experts(
            digits, network, 2, epochs=15, batch_size=32, momentum=0.9, device="cuda", backend=backend
        )
        inputs = digits.transform(digits.test.images)
        for expert in range(2):
            predicted = network.logits(experts.snapshot(expert, -1), inputs).argmax(-1)
            accuracies.append(float((predicted == digits.test.labels).float().mean()))
    assert min(accuracies) > 0.95, accuracies


@pytest.mark.parametrize(
    "method",
    [
        ContrastiveDivergence(steps=6, max_start_epoch=None, expert_epochs=1, chains=2),
        ContrastiveDivergence(steps=4, max_start_epoch=None, expert_epochs=0, kernel="sghmc"),
        BPTT(steps=5, horizon=10, unrolls=2, batch_size=100, momentum=0.5, spread=True),
        BPTT(steps=6, horizon=12, batch_size=100, spread=True, points_per_step=4),
        DistributionMatching(batch_size=20),
        PrivateMatching(noise_multiplier=0.0, networks=8, at_once=2),
        DatasetDistillation(steps=2, epochs=2, batch_size=20, step_size_learning_rate=1e-3),
        GradientMatching(matches=3, epochs=4, batch_size=20),
        SiameseGradientMatching(matches=20, epochs=2, batch_size=20),
        FeatureAlignment(settled=0.0, moved=0.0, batch_size=20, watched_images=20),
        SiameseFeatureAlignment(settled=0.0, moved=0.0, batch_size=20, watched_images=20),
    ],
    ids=str,
)
@pytest.mark.parametrize("network", ["convnet:depth=2,width=32", "convnet:depth=2,width=24"])
def test_captured_iterations_are_iterations(
    method: GradientMethod,
    network: str,
    digits: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each with its own draws: losses that differ from iteration to iteration are the same without a capture."""
    experts = train_experts(digits, network, 3, epochs=2, batch_size=128, device="cuda")
    losses = []
    eager_backend, captured_backend = FusedBackend("cuda"), FusedBackend("cuda")
    monkeypatch.setattr(eager_backend, "repeated", lambda work: work)
    for backend in (eager_backend, captured_backend):
        settings = ConstructionSettings(iterations=12, learning_rate=1e-3)
        made = run_construction(digits, experts, method.name, method, settings, backend=backend, device="cuda")
        losses.append(torch.tensor([row["loss"] for row in made.history]))
    eager, captured = losses
    assert (captured - eager).abs().max() < 0.2 * eager.std()
    assert "could not be captured" not in caplog.text


def test_a_coreset_is_constructed(digits: Dataset) -> None:
    experts = train_experts(digits, "convnet", 2, epochs=4, batch_size=32, device="cuda")
    made = run_construction(
        digits, experts, "cd", ContrastiveDivergence(expert_epochs=2, steps=20), ConstructionSettings(iterations=20)
    )
    control = real_coreset(digits, ConstructionSettings(), experts.network.spec, "cd")
    assert not torch.equal(made.coreset.images, control.images)
    assert all(math.isfinite(row["loss"]) for row in made.history)
