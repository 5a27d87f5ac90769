"""Run by a test in a process of its own: Triton must be told to interpret before it is imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.backends import Backend, ChainPlan, PlainBackend
from pseudocoresets.backends.fused import FusedBackend, capture, head, norm
from pseudocoresets.backends.fused.augmentation import FusedAugmentation, fused_augmentation
from pseudocoresets.backends.fused.autograd import autograd_layout
from pseudocoresets.backends.fused.chains import CapturedChains
from pseudocoresets.backends.fused.convnet import EnergyGradient, parameter_gradient
from pseudocoresets.backends.fused.first_block import patches_of
from pseudocoresets.backends.fused.layout import Layout, layout_of
from pseudocoresets.backends.fused.trajectory import CapturedTrajectory
from pseudocoresets.core.energy import Energy, uniform_weights
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.source import Draw
from pseudocoresets.core.state import AdjointState, Motion, Rates, at_rest, sampling_rates
from pseudocoresets.data.augmentation import KINDS, Augmentation
from pseudocoresets.dp import LayerwiseGradients, clipped_sum
from pseudocoresets.gradients import Descent, Outcome
from pseudocoresets.gradients.descent import Trajectory
from pseudocoresets.kernels import SGD, SGHMC, AnyKernel, Cyclical, Drop, PreconditionedSGHMC, Schedule
from pseudocoresets.methods import (
    BPTT,
    DistributionMatching,
    FeatureAlignment,
    GradientMatching,
    GradientMethod,
    Points,
    Problem,
    RealData,
    Wasserstein,
)
from pseudocoresets.methods.bptt import SPEEDS
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network

CPU = torch.device("cpu")
T = TypeVar("T")


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).detach().norm() / wanted.detach().norm())


def reference(network: Network, theta: Tensor, x: Tensor, y: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Energies and gradients by autograd in float64."""
    theta, x = theta.double().requires_grad_(), x.double().requires_grad_()
    log_p = F.log_softmax(network.logits(theta, x), -1)
    likelihood = (log_p * y).sum(-1) if y.is_floating_point() else log_p.gather(-1, y[:, None]).squeeze(-1)
    energies = -factors * likelihood
    dtheta, dx = torch.autograd.grad(energies.sum(), (theta, x))
    return energies.detach(), dtheta, dx


def check(shape: tuple[int, int, int], depth: int, classes: int, images: int, soft: bool) -> dict[str, float]:
    torch.manual_seed(0)
    network = build_network(f"convnet:depth={depth},width=16", shape, classes)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    theta = network.initialise(0) + 0.05 * torch.randn(network.size)
    x = torch.randn(images, *shape)
    y = torch.rand(images, classes).softmax(-1) if soft else torch.arange(images) % classes
    factors = torch.rand(images) / images
    wanted_energies, wanted_theta, wanted_x = reference(network, theta, x, y, factors)
    ordered = theta[layout.order]
    workspace = EnergyGradient(layout, images, CPU, torch.float32)
    energies, gradient = torch.empty(images), torch.zeros_like(ordered)
    patches = patches_of(x, layout, torch.float32)
    workspace.accumulate(ordered, ordered, patches, y, factors, gradient, energies)
    dx = workspace.input_gradient(ordered, ordered, patches, y, factors, torch.empty(images))
    scores = workspace.logits(ordered, ordered, patches)
    return {
        "energies": relative(energies, wanted_energies),
        "parameters": relative(gradient[layout.inverse], wanted_theta),
        "images": relative(dx, wanted_x),
        "logits": relative(scores, network.logits(theta.double(), x.double())),
    }


def check_mean_energies() -> dict[str, float]:
    """The mean cross-entropy of a batch at two places, and its gradients, with convolutions of our own."""
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=3,width=16", (1, 32, 32), 10)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    thetas, x, y = network.initialise(0, 2), torch.randn(2, 1, 32, 32, generator=generator), torch.arange(2)
    workspace = EnergyGradient(layout.widened(2), 2, CPU, torch.float32)
    energies, gradients = parameter_gradient(workspace, thetas, x, y)
    wanted = [reference(network, theta, x, y, torch.full((2,), 0.5)) for theta in thetas]
    return {
        "energies": relative(energies, torch.stack([each[0].sum() for each in wanted])),
        "gradients": relative(gradients, torch.stack([each[1] for each in wanted])),
    }


def in_standard_errors(noise: Tensor) -> dict[str, float]:
    """How far mean and deviation of standard normal numbers are from 0 and 1."""
    count = noise.numel()
    return {
        "mean": float(noise.mean()) * count**0.5,
        "deviation": float(noise.std() - 1) * (2 * count) ** 0.5,
    }


def check_update() -> dict[str, float]:
    """One step with noise: mean and deviation of the velocity, momentum, decay, the move, and the cleared gradient."""
    size, eta, decay, noise, momentum = 20_000, 0.1, 0.5, 0.2, 0.9
    theta, velocity = torch.full((size,), 2.0), torch.full((size,), 3.0)
    gradient, compact = torch.full((size,), 4.0), torch.zeros(size)
    rates, speeds = torch.tensor([eta, decay, noise, momentum]), torch.linspace(0.5, 2, size)
    head.update(theta, velocity, gradient, compact, speeds, rates, torch.tensor([7]), 1)
    expected_velocity = momentum * 3 + 4 + decay * 2
    return in_standard_errors((velocity - expected_velocity) * speeds.sqrt() / noise) | {
        "move": float((theta - (2 - eta * speeds * velocity)).abs().max()),
        "gradient": float(gradient.abs().max()),
        "compact": float((compact - theta).abs().max()),
    }


class Stream:
    """In place of a CUDA stream: everything happens at once."""

    def __init__(self, *_: object) -> None: ...

    def wait_stream(self, other: object) -> None: ...


CUDA = {"Stream": Stream, "stream": lambda _: nullcontext(), "current_stream": Stream}


class Replay:
    """In place of a CUDA graph: the work itself."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


def interpreted(work: Callable[[], None], warm_up: Callable[[], None]) -> Replay:
    """In place of ``captured``."""
    warm_up()
    return Replay(work)


class Residual(nn.Module):
    """A network with a shortcut, which is no stack of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm, self.classifier = nn.GroupNorm(2, 8), nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        return self.classifier((x + F.leaky_relu(self.norm(self.branch(x)))).amax((2, 3)))


CONVNET = build_network("convnet:depth=2,width=16", (3, 8, 8), 10)
MANY_CLASSES = build_network("convnet:depth=2,width=16", (3, 8, 8), 70)
OTHERS = [
    build_network("convnet:depth=2,width=8,norm=group,pooling=max,activation=leaky-relu", (3, 8, 8), 10),
    Network.from_module(Residual, (3, 8, 8), 10),
]


CLIPPED = [
    build_network("convnet:depth=2,width=8", (1, 8, 8), 10),
    build_network("convnet:depth=2,width=8,norm=group,pooling=max", (3, 8, 8), 10),
    build_network("convnet:depth=1,width=6,norm=layer,pooling=none", (3, 8, 8), 10),
    build_network("lenet", (1, 16, 16), 10),
]
"""Norms with kernels of one channel and of two, and without; inputs and kernels of other sizes."""


def check_chains(network: Network, shared: bool, soft: bool, momentum: float) -> dict[str, float]:
    """Two steps of three chains without noise, on the same images or each on its own, against autograd."""
    chains, images, steps, step_size, decay = 3, 2, 2, 0.1, 0.01
    generator = torch.Generator().manual_seed(0)
    layout = layout_of(network) or autograd_layout(network)
    assert isinstance(layout, Layout) == (network in (CONVNET, MANY_CLASSES))
    start = network.initialise(0, chains)
    sources = 1 if shared else chains
    x = torch.randn(sources, steps, images, 3, 8, 8, generator=generator)
    classes = len(network.logits(start[0], x[0, 0])[0])
    y = torch.rand(images, classes, generator=generator).softmax(-1) if soft else torch.arange(images)
    factors, speeds = torch.rand(images, generator=generator), 0.5 + torch.rand(start.shape, generator=generator)
    with mock.patch.multiple(torch.cuda, **CUDA), torch.no_grad():  # as a capture has it
        runner = CapturedChains(layout, (3, 8, 8), chains, images, steps, soft, shared, CPU, torch.float32)
        runner.set_position(start, speeds)
        runner.set_rates(Rates(step_size, momentum=momentum), decay)
        runner.set_labels(y, factors)
        runner.run_block(x, None, Randomness.for_purpose(0))
    expected, velocity = start.double(), torch.zeros_like(start).double()
    for step in range(steps):
        gradients = [
            reference(network, theta, x[0 if shared else chain, step], y, factors)[1]
            for chain, theta in enumerate(expected)
        ]
        velocity = momentum * velocity + torch.stack(gradients) + decay * expected
        expected = expected - step_size * speeds * velocity
    return {
        f"chain {chain}": relative(found - before, wanted - before)
        for chain, (found, wanted, before) in enumerate(zip(runner.position(), expected, start, strict=True))
    }


def check_bfloat16(network: Network, chains: int) -> list[float]:
    """How many times as far from float64 a step's gradient in bfloat16 is as autograd's own, for each chain."""
    images = 4
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(images, 3, 8, 8, generator=generator), torch.arange(images)
    start, factors = network.initialise(0, chains), torch.rand(images, generator=generator)
    layout = autograd_layout(network)
    with mock.patch.multiple(torch.cuda, **CUDA), torch.no_grad():
        runner = CapturedChains(layout, (3, 8, 8), chains, images, 1, False, True, CPU, torch.bfloat16)
        runner.set_position(start)
        runner.set_rates(Rates(1.0))
        runner.set_labels(y, factors)
        runner.run_block(x[None, None], None, Randomness.for_purpose(0))
    errors = []
    for theta, end in zip(start, runner.position(), strict=True):
        rounded = theta.bfloat16().requires_grad_()
        likelihood = F.log_softmax(network.logits(rounded, x.bfloat16()).float(), -1)[y, y]
        (own,) = torch.autograd.grad(-(factors * likelihood).sum(), rounded)
        wanted = reference(network, theta, x, y, factors)[1]
        errors.append(relative(theta - end, wanted) / relative(own, wanted))
    return errors


class Capturing(capture.Capturing):
    """Nothing here may go another way."""

    def __call__(self, build: Callable[[], T]) -> T:
        return build()


class InterpretedBackend(FusedBackend):
    """The fused backend in float32 on the CPU, with a given number of steps to a block of a trajectory."""

    def __init__(self, trajectory_steps: int = 1, fused: bool = True) -> None:
        super().__init__("cpu", torch.float32)
        self._steps, self._fused, self._capturing = trajectory_steps, fused, Capturing()

    def repeated(self, work: Callable[[Randomness], T]) -> Callable[[Randomness], T]:
        return work

    def _trajectory_block_length(self, steps: int, images: int) -> int:
        return self._steps

    def _layout(self, network: Network, device: torch.device) -> Layout | None:
        layout = super()._layout(network, device)
        assert (layout is not None) == self._fused
        return layout


def check_run_chain(network: Network, kernel: AnyKernel, schedule: Schedule | None) -> dict[str, float]:
    """A kernel without noise under a schedule, in two blocks, against the plain backend in float64."""
    chains, images, steps, data_size = 2, 2, 4, 50
    x = torch.randn(images, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    energy = Energy(Classifier(network), data_size)
    points = Points(x, torch.arange(images), uniform_weights(images, data_size))
    double = Points(x.double(), points.y, points.weights.double())
    start = network.initialise(0, chains)
    with mock.patch.multiple(torch.cuda, **CUDA):
        found, wanted = (
            backend.run_chain(
                ChainPlan(kernel, energy, given, steps, noisy=False, schedule=schedule, keep_at={2, 4}),
                at,
                Randomness.for_purpose(0),
            )
            for backend, at, given in (
                (InterpretedBackend(fused=network is CONVNET), start, points),
                (PlainBackend(), start.double(), double),
            )
        )
    return {f"kept {i}": relative(*pair) for i, pair in enumerate(zip(found - start, wanted - start, strict=True))}


def check_jobs() -> dict[str, float]:
    """Energies with their gradients in what is learned, predictions and mean energies, against the plain backend."""
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=2,width=16", (3, 8, 8), 10)
    energy, thetas = Energy(Classifier(network), 50), network.initialise(0, 2)
    x = torch.randn(3, 3, 8, 8, generator=generator).requires_grad_()
    points = Points(x, torch.arange(3), torch.rand(3, generator=generator))
    soft = torch.rand(3, 10, generator=generator).softmax(-1).requires_grad_()
    strided, turned = torch.arange(6)[::2], soft.detach().T.contiguous().T
    weights, shares = torch.tensor([0.7, 0.0, 1.3], requires_grad=True), torch.tensor([0.3, -1.2])
    answers = []
    for backend in (InterpretedBackend(), PlainBackend()):
        energies = backend.energies(energy, thetas, x, points)
        learned = backend.energies(energy, thetas, x, Points(x, soft, weights))
        of_images, of_labels, of_weights = torch.autograd.grad(shares @ learned, (x, soft, weights))
        answers.append(
            {
                "energies": energies,
                "image gradient": torch.autograd.grad(energies.sum(), x)[0],
                "learned energies": learned,
                "gradient in images": of_images,
                "gradient in labels": of_labels,
                "gradient in weights": of_weights,
                "probabilities": backend.probabilities(network, thetas, x.detach()),
                "mean energies": backend.mean_energies(energy.model, thetas, x.detach(), points.y),
                "energies far off": backend.mean_energies(energy.model, 200 * thetas, x.detach(), points.y),
                "energies of strided labels": backend.energies(energy, thetas, x, replace(points, y=strided)),
                "energies of turned labels": backend.energies(energy, thetas, x, replace(points, y=turned)),
                "energies of double weights": backend.energies(
                    energy, thetas, x, replace(points, weights=points.weights.double())
                ),
                "gradients": backend.mean_energies_and_gradients(energy.model, thetas, x.detach(), points.y).gradients,
            }
        )
    return {name: relative(found, answers[1][name]) for name, found in answers[0].items()}


def check_features() -> dict[str, float]:
    """What every layer gives, and the gradient of a function of all of them in the images."""
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=2,width=16", (3, 8, 8), 10)
    theta = network.initialise(0) + 0.05 * torch.randn(network.size, generator=generator)
    x = torch.randn(3, 3, 8, 8, generator=generator).requires_grad_()
    fast, plain = (backend.layer_features(network, theta, x) for backend in (InterpretedBackend(), PlainBackend()))
    directions = [torch.randn(layer.shape, generator=generator) for layer in plain]
    gradients = [
        torch.autograd.grad(sum((d * z).sum() for d, z in zip(directions, layers, strict=True)), x)[0]
        for layers in (fast, plain)
    ]
    embedding = InterpretedBackend().features(network, theta, x)
    (of_embedding,) = torch.autograd.grad((directions[-1] * embedding).sum(), x)
    (wanted,) = torch.autograd.grad((directions[-1] * network.features(theta, x)).sum(), x)
    errors = {f"layer {i}": relative(*pair) for i, pair in enumerate(zip(fast, plain, strict=True))}
    return errors | {"images": relative(*gradients), "of the embedding": relative(of_embedding, wanted)}


def check_condensation(method: GradientMethod) -> dict[str, float]:
    """Losses and image gradients of a method at a fresh network and at the same one trained, on both paths."""
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=2,width=16", (3, 8, 8), 2)
    real = RealData(torch.randn(6, 3, 8, 8, generator=generator), torch.arange(6) % 2, lambda images: images)
    x = torch.randn(3, 3, 8, 8, generator=generator).requires_grad_()
    paths = []
    with mock.patch.multiple(torch.cuda, **CUDA):
        for backend in (InterpretedBackend(), PlainBackend()):
            problem = Problem(Energy(Classifier(network), 50), None, lambda: real, backend=backend)
            points, found = Points(x, torch.arange(3) % 2, uniform_weights(3, 50)), []
            for iteration in range(2):
                loss = method.loss(points, problem, Randomness.for_purpose(iteration))
                found.append((loss.value, torch.autograd.grad(loss.value, x)[0]))
                points = replace(points, state=loss.state)
            paths.append(found)
    return {
        f"{what} {i}": relative(fast[k], plain[k])
        for i, (fast, plain) in enumerate(zip(*paths, strict=True))
        for k, what in enumerate(("loss", "images"))
    }


def check_noise(momentum: float) -> dict[str, float]:
    """What a temperature adds to one step: eta sqrt(2 (1 - mu) T / eta) N(0, I), that is sqrt(2 (1 - mu) eta T)."""
    step_size, temperature = 0.1, 0.3
    network = build_network("convnet:depth=2,width=16", (3, 8, 8), 10)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    ends = []
    with mock.patch.multiple(torch.cuda, **CUDA):
        runner = CapturedChains(layout, (3, 8, 8), 1, 1, 1, False, True, CPU, torch.float32)
        runner.set_labels(torch.arange(1), torch.ones(1))
        for degrees in (temperature, 0.0):
            runner.set_position(network.initialise(0, 1))
            runner.set_rates(sampling_rates(step_size, degrees, momentum))
            runner.run_block(torch.ones(1, 1, 1, 3, 8, 8), None, Randomness.for_purpose(0))
            ends.append(runner.position())
    return in_standard_errors((ends[0] - ends[1]) / (2 * (1 - momentum) * step_size * temperature) ** 0.5)


def check_trajectory(soft: bool, chains: int, momentum: float, classes: int) -> dict[str, float]:
    """Three steps of each moving chain and their adjoint, against a plain loop of first derivatives in float64."""
    steps, images, step_size, decay = 3, 2, 0.1, 0.01
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=1,width=16", (3, 8, 8), classes)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    start, spacings = network.initialise(0, chains), 1e-2 * (1 + torch.arange(chains))
    x = torch.randn(steps, images, 3, 8, 8, generator=generator)
    y = torch.rand(images, classes, generator=generator).softmax(-1) if soft else torch.arange(images)
    factors, adjoints = torch.rand(images, generator=generator), torch.randn(start.shape, generator=generator)
    velocities = 0.1 * torch.randn(start.shape, generator=generator)
    quickness = 0.5 + torch.rand(1, network.size, generator=generator)
    trajectory = CapturedTrajectory(layout, (3, 8, 8), chains, images, steps, soft, CPU, torch.float32)
    trajectory.set_rates(torch.tensor(step_size), decay, momentum, quickness)
    end = trajectory.forwards(Motion(start, velocities), x, y, factors)
    found = trajectory.backwards(AdjointState(adjoints, quickness * adjoints), spacings)

    def gradients(theta: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        _, dtheta, dx = reference(network, theta, x[step], y, factors)
        log_p = F.log_softmax(network.logits(theta.double(), x[step].double()), -1).detach()
        return dtheta + decay * theta, dx, -factors[:, None] * log_p

    dx, dstep = torch.zeros(x.shape, dtype=torch.float64), torch.zeros(())
    dy = torch.zeros(steps, images, classes, dtype=torch.float64)
    ends, befores = [], []
    for first, velocity, adjoint, spacing in zip(start, velocities, adjoints, spacings.tolist(), strict=True):
        path, speeds, along = [first.double()], [velocity.double()], adjoint.double()
        for step in range(steps):
            speeds.append(momentum * speeds[-1] + gradients(path[-1], step)[0])
            path.append(path[-1] - step_size * quickness[0] * speeds[-1])
        pull = quickness[0] * along
        for step in reversed(range(steps)):
            above, below = (gradients(path[step] + sign * spacing * pull, step) for sign in (1, -1))
            dstep = dstep - (quickness[0] * speeds[step + 1] * along).sum()
            dx[step] -= step_size * (above[1] - below[1]) / (2 * spacing)
            dy[step] -= step_size * (above[2] - below[2]) / (2 * spacing)
            along = along - step_size * (above[0] - below[0]) / (2 * spacing)
            pull = quickness[0] * along + momentum * pull
        ends.append(Motion(path[-1], speeds[-1]))
        befores.append(AdjointState(along, pull))
    (position, speed), (before, pulls) = (map(torch.stack, zip(*each, strict=True)) for each in (ends, befores))
    unmoved = quickness * adjoints * sum(momentum**power for power in range(steps + 1))
    errors = {
        "end": relative(end.position - start, position - start),
        "velocity": relative(end.velocity, speed),
        "adjoint": relative(found.before.adjoint - adjoints, before - adjoints),
        "pull": relative(found.before.pull - unmoved, pulls - unmoved),
        "images": relative(found.images, dx),
        "step size": relative(found.step_size, dstep),
    }
    return errors if found.labels is None else errors | {"labels": relative(found.labels, dy)}


def both_paths(
    network: Network, descend: Callable[[Points, Problem], Outcome], start: Tensor, steps: int, blocks: int, soft: bool
) -> dict[str, float]:
    """How far a descent on the fast path, in so many blocks, is from that on the plain path."""
    images, step_size, data_size = 2, 0.1, 50
    generator = torch.Generator().manual_seed(0)
    energy = Energy(Classifier(network), data_size)
    eta = torch.tensor(step_size, requires_grad=True)
    x = torch.randn(images, 3, 8, 8, generator=generator).requires_grad_()
    y = torch.rand(images, 10, generator=generator).softmax(-1).requires_grad_() if soft else torch.arange(images)
    weights = (uniform_weights(images, data_size) * torch.linspace(0.5, 1.5, images)).requires_grad_(soft)
    points = Points(x, y, weights, {"step_size": eta})
    real = RealData(torch.randn(20, 3, 8, 8, generator=generator), torch.arange(20) % 10, lambda images: images)
    learned = {"images": x, "step size": eta} | ({"labels": y, "weights": weights} if soft else {})
    backends: tuple[Backend, Backend] = (PlainBackend(), InterpretedBackend(steps // blocks))
    plain, fast = (descend(points, Problem(energy, None, lambda: real, backend=backend)) for backend in backends)
    wanted, found = (torch.autograd.grad(each.loss, list(learned.values())) for each in (plain, fast))
    return {
        "end": relative(fast.end.position - start, plain.end.position - start),
        "loss": relative(fast.loss, plain.loss),
        "velocity": relative(fast.end.velocity, plain.end.velocity),
    } | {name: relative(*pair) for name, pair in zip(learned, zip(found, wanted, strict=True), strict=True)}


def check_matching(soft: bool, blocks: int, points_per_step: int) -> dict[str, float]:
    """Two chains over one block or several, against the same differences on the plain path."""
    network = build_network("convnet:depth=1,width=16", (3, 8, 8), 10)
    draw = Draw(network.initialise(0, 2), network.initialise(1, 2))
    method = Wasserstein(steps=2, chains=2, points_per_step=points_per_step)
    return both_paths(
        network,
        lambda points, problem: method.match(points, problem, draw, Randomness.for_purpose(0)),
        draw.start,
        method.steps,
        blocks,
        soft,
    )


def check_unroll(momentum: float, preconditioned: bool) -> dict[str, float]:
    """An unroll of two moving chains over two blocks, against the same differences on the plain path."""
    network = build_network("convnet:depth=1,width=16", (3, 8, 8), 10)
    start = network.initialise(0, 2)
    velocity = 0.1 * torch.randn(start.shape, generator=torch.Generator().manual_seed(1))
    method = BPTT(steps=2, unrolls=2, batch_size=10, momentum=momentum)
    speeds = torch.linspace(0.5, 2, network.size)[None]
    state = {SPEEDS: speeds} if preconditioned else {}

    def descend(points: Points, problem: Problem) -> Outcome:
        return method.descend(replace(points, state=state), problem, Motion(start, velocity), Randomness.for_purpose(0))

    return both_paths(
        network,
        descend,
        start,
        method.steps,
        blocks=2,
        soft=True,
    )


def check_interleaved() -> dict[str, float]:
    """Two descents of one shape, which share what is captured: one runs amid the other, against each alone."""
    network = build_network("convnet:depth=1,width=16", (3, 8, 8), 10)
    start = at_rest(network.initialise(0, 2))
    adjoint = torch.randn(start.position.shape, generator=torch.Generator().manual_seed(2))
    spacing, shared = torch.full((2, 1), 0.01), InterpretedBackend(2)

    def descent_of(number: int, backend: InterpretedBackend) -> Trajectory:
        x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(number))
        sizes = {"step_size": torch.tensor(0.1 * (1 + number))}
        points = Points(x.requires_grad_(), torch.arange(3), torch.full((3,), 10.0), sizes)
        descent = Descent(Energy(Classifier(network), 30), points, 2, momentum=0.5 * number)
        return backend.trajectory(descent, 2, 2, Randomness.for_purpose(number))

    def found(trajectories: Sequence[Trajectory]) -> list[Tensor]:
        ends = [trajectory.forwards(start).position for trajectory in trajectories]
        return [*ends, *(trajectory.backwards(adjoint, spacing)["x"] for trajectory in trajectories)]

    together = found([descent_of(number, shared) for number in range(2)])
    apart = [found([descent_of(number, InterpretedBackend(2))]) for number in range(2)]
    wanted = [apart[0][0], apart[1][0], apart[0][1], apart[1][1]]
    names = ("first end", "second end", "first gradient", "second gradient")
    return {name: relative(*pair) for name, pair in zip(names, zip(together, wanted, strict=True), strict=True)}


def check_augmentation(shape: tuple[int, int, int], mixed: bool) -> dict[str, float]:
    """Every kind forwards and backwards against plain PyTorch, by image, for all images alike, and in steps."""
    generator = torch.Generator().manual_seed(0)
    plain = Augmentation(mixed=mixed)
    fused = fused_augmentation(plain, shape)
    assert isinstance(fused, FusedAugmentation)
    found = {}
    for kind in KINDS:
        for count in (2, 1):
            x = torch.randn(2, *shape, generator=generator, requires_grad=True)
            wanted = plain.draw_kind(kind, count, torch.Generator().manual_seed(1))(x)
            made = fused.draw_kind(kind, count, torch.Generator().manual_seed(1))(x)
            pull = torch.randn(wanted.shape, generator=generator)
            gradients = [torch.autograd.grad(each, x, pull)[0] for each in (made, wanted)]
            found |= {f"{kind} {count}": relative(made, wanted), f"{kind} {count} gradient": relative(*gradients)}
        for steps in (1, 3):
            found[f"{kind} {steps} steps"] = check_steps_of_one_kind(kind, shape, steps)
    x = torch.randn(2, *shape, generator=generator, requires_grad=True)
    draw = fused.draw_steps(4, 2, Randomness.for_purpose(0))
    shared, apart = draw(x.expand(1, 4, *x.shape)), draw(x.expand(1, 4, *x.shape).clone())
    pull = torch.randn(shared.shape, generator=generator)
    gradients = [torch.autograd.grad(each, x, pull)[0] for each in (shared, apart)]
    return found | {"steps": relative(shared, apart), "steps gradient": relative(*gradients)}


def check_steps_of_one_kind(kind: str, shape: tuple[int, int, int], steps: int) -> float:
    """A block of steps that all draw this kind, against the same images one after another in plain PyTorch."""
    plain, images = Augmentation((kind,)), 5
    fused = FusedAugmentation(plain)
    x = torch.randn(images, *shape, generator=torch.Generator().manual_seed(0))
    made = fused.draw_steps(steps, images, Randomness.for_purpose(0))(x.expand(1, steps, *x.shape))
    generator = Randomness.for_purpose(0).device
    fused.draw_kinds(steps, generator)
    wanted = plain.draw_kind(kind, steps * images, generator)(x.repeat(steps, 1, 1, 1))
    return relative(made.flatten(0, 2), wanted)


def check_norm(shape: tuple[int, int, int, int], groups: int) -> dict[str, float]:
    """A group norm of channels-last images and its gradients, against PyTorch's in float64; no image may go around."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(memory_format=torch.channels_last)
    gamma, beta, pull = (torch.randn(size, generator=generator) for size in (shape[1], shape[1], shape))
    assert norm.has_kernel(x, groups)
    sides = []
    for dtype in (torch.float32, torch.float64):
        given = [each.to(dtype).requires_grad_() for each in (x, gamma, beta)]
        with norm.ChannelsLastNorms():
            y = F.group_norm(given[0], groups, *given[1:], eps=0.1)
        assert (y.grad_fn is not None and "NativeGroupNorm" in y.grad_fn.name()) == (dtype == torch.float64)
        sides.append([y, *torch.autograd.grad(y, given, pull.to(dtype))])
    names = ("output", "images", "gamma", "beta")
    return {name: relative(*pair) for name, pair in zip(names, zip(*sides, strict=True), strict=True)}


def check_clipped(network: Network, dtype: torch.dtype) -> dict[str, float]:
    """The clipped sum in float32, or as a multiple of what autograd's rounding does to it; and what adds nothing.

    Three of twenty examples are not admitted, and one has a gradient that is not finite.
    """
    x = torch.randn(20, *network.spec.shape, generator=torch.Generator().manual_seed(0))
    y, theta, admitted = torch.arange(20) % 10, network.initialise(0), torch.arange(20) % 7 != 3
    x[5] = torch.inf
    counted = admitted & (torch.arange(20) != 5)
    alone = x[counted].double(), y[counted]
    gradients = LayerwiseGradients(network)(theta.double(), *alone)
    norm = float(gradients.squares().sqrt().median())
    wanted = clipped_sum(gradients, norm)
    backend = FusedBackend("cpu", dtype)
    found = backend.clipped_gradients(network, theta, x, y, norm, admitted)
    again = backend.clipped_gradients(
        network, theta, torch.where(admitted[:, None, None, None], x, 1e9), y, norm, admitted
    )
    unit = 1.0
    if dtype == torch.bfloat16:
        rounded = clipped_sum(LayerwiseGradients(network)(theta, alone[0].to(dtype), y[counted]), norm)
        unit = relative(rounded, wanted)
    nobody = backend.clipped_gradients(network, theta, x, y, norm, torch.zeros_like(admitted))
    nothing = float((found - again).abs().max() + nobody.abs().max())
    return {"sum": relative(found, wanted) / unit, "nothing": nothing, "captured": len(backend._clipped_sums)}


def check_kinds(mixed: bool) -> list[int]:
    """How often each of three kinds is drawn in sixty, as steps or as images of one step."""
    fused = FusedAugmentation(Augmentation(("color", "flip", "rotate"), mixed=mixed))
    numbers = fused.draw_kinds(60, torch.Generator().manual_seed(0))
    return numbers.bincount(minlength=len(KINDS)).tolist()


if __name__ == "__main__":
    for module in ("chains", "trajectory"):
        mock.patch(f"pseudocoresets.backends.fused.{module}.captured", interpreted).start()
    found = {
        "augmentation": [check_augmentation((3, 8, 8), mixed=False), check_augmentation((1, 6, 10), mixed=True)],
        "kinds": [check_kinds(mixed=True), check_kinds(mixed=False)],
        "gradients": [
            check((3, 16, 16), 2, 10, 3, soft=False),
            check((1, 28, 28), 3, 10, 2, soft=True),
            check((3, 8, 8), 2, 20, 3, soft=False),
            check((3, 8, 8), 2, 100, 3, soft=False),
        ],
        "norms": [check_norm((3, 24, 5, 3), 6), check_norm((2, 16, 4, 4), 16), check_norm((2, 8, 4, 4), 1)],
        "clipped": [check_clipped(network, torch.float32) for network in CLIPPED],
        "clipped in bfloat16": [check_clipped(network, torch.bfloat16) for network in CLIPPED[:3:2]],
        "mean energies": check_mean_energies(),
        "chains": [
            check_chains(CONVNET, shared=True, soft=True, momentum=0.8),
            check_chains(CONVNET, shared=False, soft=False, momentum=0.0),
            check_chains(MANY_CLASSES, shared=True, soft=True, momentum=0.8),
        ],
        "chains by autograd": [check_chains(each, soft, soft, 0.8) for each in OTHERS for soft in (True, False)],
        "bfloat16": [each for network in OTHERS for chains in (1, 2) for each in check_bfloat16(network, chains)],
        "run_chain": [
            check_run_chain(CONVNET, SGHMC(0.1, 0.2), Cyclical(4, cycles=2)),
            check_run_chain(CONVNET, SGD(0.1, 0.8), Drop(3)),
            check_run_chain(CONVNET, SGHMC(0.1, 0.2), None),
            check_run_chain(CONVNET, PreconditionedSGHMC(0.05, 0.2), None),
            check_run_chain(OTHERS[0], SGD(0.1, 0.8), Drop(3)),
        ],
        "jobs": check_jobs(),
        "features": check_features(),
        "condensation": [
            check_condensation(DistributionMatching(batch_size=2)),
            check_condensation(GradientMatching(matches=2, epochs=2, batch_size=2)),
            check_condensation(GradientMatching(matches=2, epochs=2, batch_size=2, gradient="differences:radius=0.1")),
            check_condensation(FeatureAlignment(batch_size=2, watched_images=1, most_epochs=1)),
        ],
        "noise": check_noise(0.9),
        "trajectory": [
            check_trajectory(False, 2, 0.8, 10),
            check_trajectory(True, 1, 0.0, 10),
            check_trajectory(True, 2, 0.8, 70),
        ],
        "matching": [check_matching(False, 1, 1), check_matching(True, 2, 0)],
        "unroll": [check_unroll(0.9, preconditioned) for preconditioned in (False, True)],
        "interleaved": check_interleaved(),
        "update": check_update(),
    }
    sys.stdout.write(json.dumps(found))
