"""Training a network on the synthetic data, between two looks at it."""

from __future__ import annotations

import torch
from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Rates
from pseudocoresets.data.augmentation import AnyAugmentation
from pseudocoresets.gradients.descent import draw_subsets
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.networks import Network

TRAINING_BATCH = 256
"""Synthetic images that a step of the network sees, if there are so many."""


def trained(
    network: Network,
    theta: Tensor,
    points: Points,
    epochs: int,
    step_size: float,
    augmentation: AnyAugmentation | None,
    problem: Problem,
    randomness: Randomness,
) -> Tensor:
    """theta (size,) after ``epochs`` passes over the points by SGD, without a graph.

    theta <- theta - eta grad_theta sum_{j in batch} w_j CE(f(A s_j; theta), y_j) / (share of the batch of sum_j w_j)

    The points are dealt out to as few batches of at most 256 as there can be, all of one size.
    """
    count = len(points)
    batches = -(-count // TRAINING_BATCH)
    size, steps = -(-count // batches), epochs * batches
    x, y = points.x.detach(), points.y.detach()
    factors = points.weights.detach() * (count / size) / points.weights.detach().sum()
    runner = problem.backend.chains(network, x.device, 1, size, steps, y.is_floating_point(), shared=True)
    everything = torch.arange(count, device=x.device).expand(steps, count)
    subsets = draw_subsets(steps, count, size, randomness)
    runner.set_position(theta.detach()[None])
    runner.set_rates(Rates(step_size))
    for seen in (everything if subsets is None else subsets).split(runner.steps):
        runner.set_labels(y[seen][None], factors[seen][None])
        runner.run_block(x[seen][None], augmentation, randomness)
    return runner.position()[0]
