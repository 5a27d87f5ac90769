"""How a posterior predicts when the test images are corrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pseudocoresets.data.corruptions import SEVERITIES, SHIFT_CORRUPTIONS, corrupt
from pseudocoresets.data.dataset import Split
from pseudocoresets.evaluation.metrics import METRICS, all_metrics
from pseudocoresets.evaluation.report import Summary
from pseudocoresets.inference.samples import PosteriorSamples

Corrupted = Callable[[str, int], Tensor]
"""Test images under a corruption at a severity."""


@dataclass(frozen=True)
class Scores:
    """Each metric over single chains, and of the average over all of them."""

    chains: Mapping[str, Summary]
    ensemble: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        return {name: summary.as_json() for name, summary in self.chains.items()} | {"ensemble": dict(self.ensemble)}


def scores(probabilities: Tensor, labels: Tensor) -> Scores:
    """Of probabilities (chains, samples, n, classes)."""
    labels = labels.to(probabilities.device)
    single = [all_metrics(chain.mean(0), labels) for chain in probabilities]
    chains = {name: Summary(tuple(run[name] for run in single)) for name in METRICS}
    return Scores(chains, all_metrics(probabilities.flatten(0, 1).mean(0), labels))


def corrupted_split(split: Split, name: str, severity: int, seed: int = 0) -> Split:
    """The same labels with corrupted images."""
    return Split(corrupt(split.images, name, severity, seed), split.labels, split.dataset)


def evaluate_shift(
    samples: PosteriorSamples,
    split: Split,
    corruptions: Sequence[str] = SHIFT_CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    corrupted: Corrupted | None = None,
) -> dict[str, list[Scores]]:
    """Scores by corruption, at each severity in turn.

    Args:
        samples: Of the posterior of a coreset of images.
        split: Clean test data.
        corruptions: Names of ``data.corruptions.CORRUPTIONS``; the paper's ten unless given.
        severities: From 1 to 5.
        corrupted: Where the corrupted images come from, if not from ``corrupt``.
    """
    images = corrupted or (lambda name, severity: corrupt(split.images, name, severity))
    return {
        name: [scores(samples.predict(images(name, severity)), split.labels) for severity in severities]
        for name in corruptions
    }
