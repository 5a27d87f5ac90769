"""Run by a test in a process of its own: Triton must be told to interpret before it is imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.accelerated import Accelerator, head
from pseudocoresets.accelerated.chains import CapturedChains
from pseudocoresets.accelerated.convnet import EnergyGradient, Layout, layout_of, parameter_gradient
from pseudocoresets.accelerated.trajectory import CapturedTrajectory
from pseudocoresets.divergences import Points, Problem, Wasserstein, captured_matching
from pseudocoresets.energy import Classifier, Energy, uniform_weights
from pseudocoresets.experts import Draw
from pseudocoresets.networks import Network, build_network
from pseudocoresets.seeds import Randomness

CPU = torch.device("cpu")


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
    x = torch.randn(images, *shape).contiguous(memory_format=torch.channels_last)
    y = torch.rand(images, classes).softmax(-1) if soft else torch.arange(images) % classes
    factors = torch.rand(images) / images
    wanted_energies, wanted_theta, wanted_x = reference(network, theta, x, y, factors)
    ordered = theta[layout.order]
    workspace = EnergyGradient(layout, images, CPU, torch.float32)
    energies, gradient = torch.empty(images), torch.zeros_like(ordered)
    workspace.accumulate(ordered, ordered, x, y, factors, gradient, energies)
    dx = workspace.input_gradient(ordered, ordered, x, y, factors, torch.empty(images))
    scores = workspace.logits(ordered, ordered, x)
    return {
        "energies": relative(energies, wanted_energies),
        "parameters": relative(gradient[layout.inverse], wanted_theta),
        "images": relative(dx, wanted_x),
        "logits": relative(scores, network.logits(theta.double(), x.double())),
    }


def check_slopes() -> dict[str, float]:
    """The mean cross-entropy of a batch at two places, and its gradients."""
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=2,width=16", (3, 8, 8), 10)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    thetas, x, y = network.initialise(0, 2), torch.randn(5, 3, 8, 8, generator=generator), torch.arange(5)
    workspace = EnergyGradient(layout.widened(2), 5, CPU, torch.float32)
    energies, slopes = parameter_gradient(workspace, thetas, x, y)
    wanted = [reference(network, theta, x, y, torch.full((5,), 0.2)) for theta in thetas]
    return {
        "energies": relative(energies, torch.stack([each[0].sum() for each in wanted])),
        "slopes": relative(slopes, torch.stack([each[1] for each in wanted])),
    }


def check_update() -> dict[str, float]:
    """One step with noise: mean and deviation of the move, momentum, decay, and the cleared gradient."""
    size, eta, decay, noise, momentum = 20_000, 0.1, 0.5, 0.2, 0.9
    theta, velocity = torch.full((size,), 2.0), torch.full((size,), 3.0)
    gradient, compact = torch.full((size,), 4.0), torch.zeros(size)
    rates = torch.tensor([eta, decay, noise, momentum])
    head.update(theta, velocity, gradient, compact, rates, torch.tensor([7]), 1)
    expected_velocity = momentum * 3 + 4 + decay * 2
    residual = (theta - (2 - eta * expected_velocity)) / noise
    return {
        "velocity": float((velocity - expected_velocity).abs().max()),
        "mean": float(residual.mean()) * size**0.5,
        "deviation": float(residual.std() - 1) * (2 * size) ** 0.5,
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


class InterpretedTrajectory(CapturedTrajectory):
    def _capture(self) -> tuple[Any, Any]:
        return Replay(self._all_steps), Replay(self._all_adjoint_steps)


class InterpretedChains(CapturedChains):
    def _capture(self) -> Any:
        return Replay(self._all_steps)


def check_chains(shared: bool, soft: bool) -> dict[str, float]:
    """Two steps of three chains without noise, on the same images or each on its own, against autograd."""
    chains, images, steps, step_size, decay = 3, 2, 2, 0.1, 0.01
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=2,width=16", (3, 8, 8), 10)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    start = network.initialise(0, chains)
    sources = 1 if shared else chains
    x = torch.randn(sources, steps, images, 3, 8, 8, generator=generator)
    y = torch.rand(images, 10, generator=generator).softmax(-1) if soft else torch.arange(images)
    factors = torch.rand(images, generator=generator)
    with mock.patch.multiple(torch.cuda, **CUDA):
        runner = InterpretedChains(layout, (3, 8, 8), chains, images, steps, soft, shared, CPU, torch.float32)
        runner.set_position(start)
        runner.set_rates(step_size, 0.0, decay)
        runner.set_labels(y, factors)
        runner.run_block(x, None, Randomness.for_purpose(0))
    expected = start.double()
    for step in range(steps):
        slopes = [
            reference(network, theta, x[0 if shared else chain, step], y, factors)[1]
            for chain, theta in enumerate(expected)
        ]
        expected = expected - step_size * (torch.stack(slopes) + decay * expected)
    return {
        f"chain {chain}": relative(found - before, wanted - before)
        for chain, (found, wanted, before) in enumerate(zip(runner.position(), expected, start, strict=True))
    }


def check_trajectory(soft: bool, chains: int) -> dict[str, float]:
    """Four steps of each chain and their adjoint, against a plain loop of first derivatives in float64."""
    steps, images, step_size, decay = 4, 3, 0.1, 0.01
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=2,width=16", (3, 8, 8), 10)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    start, spacings = network.initialise(0, chains), 1e-2 * (1 + torch.arange(chains))
    x = torch.randn(steps, images, 3, 8, 8, generator=generator)
    y = torch.rand(images, 10, generator=generator).softmax(-1) if soft else torch.arange(images)
    factors, costates = torch.rand(images, generator=generator), torch.randn(start.shape, generator=generator)
    trajectory = InterpretedTrajectory(layout, (3, 8, 8), chains, images, steps, soft, CPU, torch.float32)
    trajectory.set_rates(torch.tensor(step_size), decay)
    end = trajectory.forwards(start, x, y, factors)
    found = trajectory.backwards(costates, spacings)

    def slopes(theta: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        _, dtheta, dx = reference(network, theta, x[step], y, factors)
        log_p = F.log_softmax(network.logits(theta.double(), x[step].double()), -1).detach()
        return dtheta + decay * theta, dx, -factors[:, None] * log_p

    dx, dstep = torch.zeros(x.shape, dtype=torch.float64), torch.zeros(())
    dy = torch.zeros(steps, images, 10, dtype=torch.float64)
    ends, befores = [], []
    for first, costate, spacing in zip(start, costates, spacings.tolist(), strict=True):
        path, along = [first.double()], costate.double()
        for step in range(steps):
            path.append(path[-1] - step_size * slopes(path[-1], step)[0])
        for step in reversed(range(steps)):
            above, below = (slopes(path[step] + sign * spacing * along, step) for sign in (1, -1))
            dstep = dstep - (slopes(path[step], step)[0] * along).sum()
            dx[step] -= step_size * (above[1] - below[1]) / (2 * spacing)
            dy[step] -= step_size * (above[2] - below[2]) / (2 * spacing)
            along = along - step_size * (above[0] - below[0]) / (2 * spacing)
        ends.append(path[-1])
        befores.append(along)
    errors = {
        "end": relative(end - start, torch.stack(ends) - start),
        "costate": relative(found.costate - costates, torch.stack(befores) - costates),
        "images": relative(found.images, dx),
        "step size": relative(found.step_size, dstep),
    }
    return errors if found.labels is None else errors | {"labels": relative(found.labels, dy)}


class InterpretedAccelerator(Accelerator):
    def trajectory_for(
        self, network: Network, device: torch.device, chains: int, images: int, steps: int, soft: bool
    ) -> CapturedTrajectory | None:
        layout = layout_of(network)
        assert isinstance(layout, Layout)
        return InterpretedTrajectory(layout, network.spec.shape, chains, images, steps, soft, device, torch.float32)


def check_matching(soft: bool, blocks: int, points_per_step: int) -> dict[str, float]:
    """Two chains over one block or several, against the same differences on the plain path."""
    steps, images, step_size, data_size = 4, 3, 0.1, 50
    generator = torch.Generator().manual_seed(0)
    network = build_network("convnet:depth=2,width=16", (3, 8, 8), 10)
    energy = Energy(Classifier(network), data_size)
    draw = Draw(network.initialise(0, 2), network.initialise(1, 2))
    eta = torch.tensor(step_size, requires_grad=True)
    x = torch.randn(images, 3, 8, 8, generator=generator).requires_grad_()
    y = torch.rand(images, 10, generator=generator).softmax(-1).requires_grad_() if soft else torch.arange(images)
    points = Points(x, y, uniform_weights(images, data_size), {"step_size": eta})
    learned = [x, y] if soft else [x]
    method = Wasserstein(steps=steps, chains=2, points_per_step=points_per_step)
    with mock.patch.object(captured_matching, "trajectory_block_length", lambda *_: steps // blocks):
        plain, fast = (
            method.match(points, Problem(energy, accelerator=accelerator), draw, Randomness.for_purpose(0))
            for accelerator in (Accelerator(), InterpretedAccelerator())
        )
    wanted, found = (torch.autograd.grad(match.loss, learned, retain_graph=True) for match in (plain, fast))
    return {
        "end": relative(fast.end - draw.start, plain.end - draw.start),
        "loss": relative(fast.loss, plain.loss),
        "images": relative(found[0], wanted[0]),
    } | ({"labels": relative(found[1], wanted[1])} if soft else {})


if __name__ == "__main__":
    found = {
        "gradients": [
            check((3, 16, 16), 2, 10, 5, soft=False),
            check((1, 28, 28), 3, 10, 2, soft=True),
            check((3, 8, 8), 2, 20, 3, soft=False),
        ],
        "slopes": check_slopes(),
        "chains": [check_chains(shared, soft) for shared in (True, False) for soft in (True, False)],
        "trajectory": [check_trajectory(False, 2), check_trajectory(True, 1)],
        "matching": [check_matching(False, 1, 2), check_matching(True, 2, 0)],
        "update": check_update(),
    }
    sys.stdout.write(json.dumps(found))
