"""One iteration of contrastive divergence for other networks, samplers and options, captured and by the plain path.

A network's time *in proportion* is what it would take at the rate of operations of the ConvNet with kernels of its own:
at that of the day when the bound of 1.5 times was set, and at today's, which is measured first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pseudocoresets.backends import Backend, PlainBackend
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.workflows.bench import (
    construction_iteration,
    contrastive_divergence,
    seconds_of,
    step_cost,
    synthetic_data,
)

CLASSES = 10
CONVNET_WHEN_BOUND_WAS_SET = 25.5
"""Milliseconds of the first case on one H200, from which the bound on the other networks was set."""


@dataclass(frozen=True)
class Case:
    """What is measured: ``steps`` transitions, of so many gradients each, of a kernel of one chain."""

    network: str
    steps: int
    kernel: str = "langevin"
    learn_weights: bool = False
    gradients_per_step: int = 1

    def __str__(self) -> str:
        sampler = "" if self.kernel == "langevin" else f", {self.kernel}"
        return f"{self.network}{sampler}, k = {self.steps}{', learned weights' if self.learn_weights else ''}"


CONVNET = "convnet:depth=3,width=128"
ON_GPU = (
    Case(CONVNET, 100),
    Case(CONVNET, 100, learn_weights=True),
    Case(CONVNET, 10, "hmc:leapfrog_steps=10", gradients_per_step=10),
    Case(CONVNET, 100, "mala"),
    Case(f"{CONVNET},norm=group,pooling=max,activation=leaky-relu", 100),
    Case(f"{CONVNET},norm=none", 100),
    Case("alexnet", 100),
    Case("vgg11", 100),
    Case("resnet18", 100),
)
ON_CPU = (
    Case("convnet", 5),
    Case("convnet:pooling=max", 5),
    Case("convnet", 2, "hmc:leapfrog_steps=2", gradients_per_step=2),
)


@dataclass(frozen=True)
class NetworkCost:
    """Milliseconds of an iteration, those of the plain path, and the arithmetic of its chain."""

    case: Case
    images: int
    ours: float
    plain: float
    gflop: float
    in_proportion: float | None
    """Milliseconds at the rate of the ConvNet when the bound was set; on a GPU, where that was measured."""
    in_proportion_today: float | None
    """At the rate of the first row, of which it is none."""

    @property
    def times_faster(self) -> float:
        return self.plain / self.ours

    @property
    def of_proportion(self) -> float | None:
        """How many times as long as in proportion it takes."""
        return None if self.in_proportion is None else self.ours / self.in_proportion

    @property
    def of_proportion_today(self) -> float | None:
        return None if self.in_proportion_today is None else self.ours / self.in_proportion_today

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "times_faster": self.times_faster,
            "of_proportion": self.of_proportion,
            "of_proportion_today": self.of_proportion_today,
        }


def bench_networks(device: torch.device, backend: Backend) -> Iterator[NetworkCost]:
    """A row for each case: CIFAR-10's shapes at ten images per class on a GPU, the digits' at one on a CPU."""
    on_gpu = device.type == "cuda"
    shape, ipc, cases = ((3, 32, 32), 10, ON_GPU) if on_gpu else ((1, 8, 8), 1, ON_CPU)
    data = synthetic_data(shape, 1000, 10, CLASSES)
    first: NetworkCost | None = None
    for case in cases:
        network = build_network(case.network, shape, CLASSES)
        gflop = step_cost(network, CLASSES * ipc, 4)[0] / 1e9 * case.steps * case.gradients_per_step
        ours = _milliseconds(case, network, data, ipc, device, backend, warm_ups=5, repeats=10 if on_gpu else 2)
        plain = _milliseconds(case, network, data, ipc, device, PlainBackend(), warm_ups=1, repeats=2)
        share = gflop / (gflop if first is None else first.gflop)
        then = CONVNET_WHEN_BOUND_WAS_SET * share if on_gpu else None
        today = None if first is None else first.ours * share
        row = NetworkCost(case, CLASSES * ipc, ours, plain, gflop, then, today)
        first = first or row
        yield row


def _milliseconds(
    case: Case,
    network: Network,
    data: Dataset,
    ipc: int,
    device: torch.device,
    backend: Backend,
    warm_ups: int,
    repeats: int,
) -> float:
    """Of iterations that follow one another, after those in which graphs are captured."""
    method = contrastive_divergence(1, case.steps, case.kernel)
    iteration = construction_iteration(data, network, method, ipc, device, backend, learn_weights=case.learn_weights)
    return 1e3 * seconds_of(iteration, device, repeats, warm_ups)
