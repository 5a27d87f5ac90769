"""One iteration of contrastive divergence for other networks, samplers and options, captured and by the plain path.

The ConvNet with kernels of its own comes first: from its time and the arithmetic of both, a network's time *in
proportion* is what it would take at the ConvNet's rate of operations.
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


@dataclass(frozen=True)
class Case:
    """What is measured: ``steps`` transitions of a kernel of one chain on ten images, one of each class."""

    network: str
    steps: int
    kernel: str = "langevin"
    learn_weights: bool = False

    def __str__(self) -> str:
        sampler = "" if self.kernel == "langevin" else f", {self.kernel}"
        return f"{self.network}{sampler}, k = {self.steps}{', learned weights' if self.learn_weights else ''}"


CONVNET = "convnet:depth=3,width=128"
ON_GPU = (
    Case(CONVNET, 100),
    Case(CONVNET, 100, learn_weights=True),
    Case(CONVNET, 10, "hmc:leapfrog_steps=10"),
    Case(CONVNET, 100, "mala"),
    Case(f"{CONVNET},norm=group,pooling=max,activation=leaky-relu", 100),
    Case(f"{CONVNET},norm=none", 100),
    Case("alexnet", 100),
    Case("vgg11", 100),
    Case("resnet18", 100),
)
ON_CPU = (Case("convnet", 5), Case("convnet:pooling=max", 5), Case("convnet", 2, "hmc:leapfrog_steps=2"))


@dataclass(frozen=True)
class NetworkCost:
    """Milliseconds of an iteration, those of the plain path, and the arithmetic of one step."""

    case: Case
    ours: float
    plain: float
    gflop_per_step: float
    in_proportion: float | None
    """Milliseconds at the ConvNet's rate of operations; only of as many steps of the same kernel."""

    @property
    def times_faster(self) -> float:
        return self.plain / self.ours

    @property
    def of_proportion(self) -> float | None:
        """How many times as long as in proportion it takes."""
        return None if self.in_proportion is None else self.ours / self.in_proportion

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"times_faster": self.times_faster, "of_proportion": self.of_proportion}


def bench_networks(device: torch.device, backend: Backend) -> Iterator[NetworkCost]:
    """A row for each case, of CIFAR-10's shapes on a GPU and of the digits' on a CPU."""
    on_gpu = device.type == "cuda"
    shape, cases = ((3, 32, 32), ON_GPU) if on_gpu else ((1, 8, 8), ON_CPU)
    data = synthetic_data(shape, 1000, 10, CLASSES)
    first: NetworkCost | None = None
    for case in cases:
        network = build_network(case.network, shape, CLASSES)
        arithmetic = step_cost(network, CLASSES, 4)[0] / 1e9
        ours = _milliseconds(case, network, data, device, backend, warm_ups=5, repeats=10 if on_gpu else 2)
        plain = _milliseconds(case, network, data, device, PlainBackend(), warm_ups=1, repeats=2)
        alike = first is not None and (case.kernel, case.steps) == (first.case.kernel, first.case.steps)
        share = first.ours * arithmetic / first.gflop_per_step if first is not None and alike else None
        row = NetworkCost(case, ours, plain, arithmetic, share)
        first = first or row
        yield row


def _milliseconds(
    case: Case, network: Network, data: Dataset, device: torch.device, backend: Backend, warm_ups: int, repeats: int
) -> float:
    """Of iterations that follow one another, after those in which graphs are captured."""
    method = contrastive_divergence(1, case.steps, case.kernel)
    iteration = construction_iteration(data, network, method, 1, device, backend, learn_weights=case.learn_weights)
    return 1e3 * seconds_of(iteration, device, repeats, warm_ups)
