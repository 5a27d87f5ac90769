"""Run by a test in a process of its own: Triton must be told to interpret before it is imported."""

from __future__ import annotations

import json
import sys

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.accelerated import head
from pseudocoresets.accelerated.convnet import EnergyGradient, Layout, layout_of
from pseudocoresets.networks import Network, build_network

CPU = torch.device("cpu")


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


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


if __name__ == "__main__":
    found = {
        "gradients": [
            check((3, 16, 16), 2, 10, 5, soft=False),
            check((1, 28, 28), 3, 10, 2, soft=True),
            check((3, 8, 8), 2, 20, 3, soft=False),
        ],
        "update": check_update(),
    }
    sys.stdout.write(json.dumps(found))
