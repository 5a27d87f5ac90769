"""Which gradient of trajectory matching lowers its loss when the points move by a finite amount?

From an initialisation, an expert takes SGD steps on real batches; the coreset's descent starts at the same place. The
points then move by a given length along the negative of each candidate gradient, and the loss is measured under
augmentations that the gradient has not seen.

    python benchmarks/matching_gradients.py --data-dir data --out benchmarks/results/matching_gradients.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from provenance import provenance
from pseudocoresets.construction.loop import real_coreset
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.kernels import Langevin
from pseudocoresets.methods import Points, Problem, Wasserstein
from pseudocoresets.methods.contrastive import phase_difference
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts import Draw

GRADIENTS: dict[str, dict[str, Any]] = {
    "exact": {"gradient": "constant-memory"},
    "detached": {"gradient": "detached"},
    "differences, reach 0.03": {"gradient": "differences", "reach": 0.03},
    "differences, reach 0.1": {"gradient": "differences", "reach": 0.1},
    "differences, reach 0.3": {"gradient": "differences", "reach": 0.3},
    "differences, reach 1": {"gradient": "differences", "reach": 1.0},
}
LENGTHS = (1.0, 3.0, 10.0, 20.0)
UNSEEN = (2, 3, 4)


def expert_later(data: Dataset, network: Network, start: Tensor, steps: int) -> Tensor:
    """``start`` after SGD steps of 0.05 on batches of 64."""
    theta, generator = start, torch.Generator().manual_seed(0)
    for _ in range(steps):
        index = torch.randint(len(data.train), (64,), generator=generator)
        theta = theta.detach().requires_grad_()
        logits = network.logits(theta[0], data.transform(data.train.images[index]))
        (slope,) = torch.autograd.grad(F.cross_entropy(logits, data.train.labels[index]), theta)
        theta = theta - 0.05 * slope
    return theta.detach()


class Comparison:
    def __init__(self, problem: Problem, coreset: Coreset, draw: Draw, steps: int, step_size: float) -> None:
        self._problem, self._coreset, self._draw = problem, coreset, draw
        self._steps, self._step_size = steps, step_size

    def match(self, x: Tensor, seed: int, options: dict[str, Any]) -> Any:
        hyperparameters = {"step_size": torch.tensor(self._step_size)}
        points = Points(x, self._coreset.labels, self._coreset.weights, hyperparameters)
        method = Wasserstein(steps=self._steps, stored=self._steps, **options)
        return method.match(points, self._problem, self._draw, Randomness.for_purpose(seed))

    def loss(self, x: Tensor, seed: int) -> float:
        end = self.end(x, seed)
        start, later = self._draw
        return float((end - later).square().sum() / (start - later).square().sum())

    def end(self, x: Tensor, seed: int) -> Tensor:
        points = Points(x, self._coreset.labels, self._coreset.weights)
        kernel, randomness = Langevin(self._step_size), Randomness.for_purpose(seed)
        return self._problem.run_chain(kernel, self._draw.start, points, self._steps, randomness, noisy=False)

    def gradient(self, options: dict[str, Any]) -> Tensor:
        leaf = self._coreset.images.clone().requires_grad_()
        return torch.autograd.grad(self.match(leaf, 1, options).loss, leaf)[0]

    def contrastive_gradient(self) -> Tensor:
        leaf = self._coreset.images.clone().requires_grad_()
        points = Points(leaf, self._coreset.labels, self._coreset.weights)
        end = self.end(leaf.detach(), 1)
        loss = phase_difference(points, self._problem, self._draw.later, end, Randomness.for_purpose(1))
        return torch.autograd.grad(loss.value, leaf)[0]

    def changes(self, direction: Tensor) -> list[float]:
        """The mean change of the loss for each length of move."""
        x = self._coreset.images
        before = {seed: self.loss(x, seed) for seed in UNSEEN}
        unit = direction / direction.norm()
        return [
            round(statistics.fmean(self.loss(x - length * unit, seed) - before[seed] for seed in UNSEEN), 4)
            for length in LENGTHS
        ]


def measure(data: Dataset, steps: int, step_size: float, report: Callable[[dict[str, Any]], None]) -> None:
    network = build_network("convnet:depth=3,width=128", data.shape, len(data.classes))
    coreset = real_coreset(data, ConstructionSettings(ipc=1), network.spec, "random")
    problem = Problem(Energy(Classifier(network), len(data.train)), augmentation=dsa(data.flippable))
    start = network.initialise(0, 1)
    comparison = Comparison(problem, coreset, Draw(start, expert_later(data, network, start, 40)), steps, step_size)
    directions = {name: comparison.gradient(options) for name, options in GRADIENTS.items()}
    directions["contrastive divergence"] = comparison.contrastive_gradient()
    exact = directions["exact"]
    for name, direction in directions.items():
        cosine = float((direction * exact).sum() / direction.norm() / exact.norm())
        row = {"steps": steps, "step_size": step_size, "gradient": name, "cosine": round(cosine, 3)}
        report(row | {"change": comparison.changes(direction)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = load_dataset(options.dataset, options.data_dir)
    document: dict[str, Any] = {**provenance(), "dataset": options.dataset, "lengths": LENGTHS, "rows": []}

    def report(row: dict[str, Any]) -> None:
        document["rows"].append(row)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
        print(row, flush=True)

    for step_size in (0.05, 0.02):
        measure(data, 30, step_size, report)


if __name__ == "__main__":
    main()
