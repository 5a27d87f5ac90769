"""Each metric over single chains, and of the average over all of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pseudocoresets.evaluation.metrics import METRICS, all_metrics


@dataclass(frozen=True)
class Summary:
    """One metric over several runs."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """Sample deviation; 0 for a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std, "values": list(self.values)}


@dataclass(frozen=True)
class Scores:
    """Each metric over single chains, and of the average over all of them."""

    chains: Mapping[str, Summary]
    ensemble: Mapping[str, float]

    @classmethod
    def of(cls, chains: Sequence[Tensor], together: Tensor, labels: Tensor) -> Scores:
        """Of what each chain, and all together, predict: probabilities (n, classes)."""
        single = [all_metrics(chain, labels) for chain in chains]
        summaries = {name: Summary(tuple(run[name] for run in single)) for name in METRICS}
        return cls(summaries, all_metrics(together, labels))

    def as_json(self) -> dict[str, Any]:
        return {name: summary.as_json() for name, summary in self.chains.items()} | {"ensemble": dict(self.ensemble)}


def scores(probabilities: Tensor, labels: Tensor) -> Scores:
    """Of probabilities (chains, samples, n, classes)."""
    return Scores.of(list(probabilities.mean(1)), probabilities.flatten(0, 1).mean(0), labels.to(probabilities.device))


def pooled_summary(parts: Sequence[Summary]) -> Summary:
    """All runs of several summaries together."""
    return Summary(tuple(value for part in parts for value in part.values))


def mean_ensemble(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The averages of what belongs to each average over chains alone."""
    return {name: statistics.fmean(part[name] for part in parts) for name in METRICS}
