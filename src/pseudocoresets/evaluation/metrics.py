"""How good a predictive distribution is: accuracy, negative log-likelihood, calibration error, Brier score.

With predicted probabilities p_i and labels y_i, i = 1..n:

    accuracy   mean of [argmax p_i = y_i]
    nll        mean of -log p_i[y_i]                      (natural logarithm)
    ece        sum_b (n_b / n) |accuracy_b - confidence_b| over 15 equal bins of the confidence max p_i
    brier      mean of sum_c (p_i[c] - [c = y_i])^2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ECE_BINS = 15
SMALLEST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class Metric:
    """How one metric is written, and which way is better."""

    name: str
    title: str
    """Above a column of a table."""
    higher_is_better: bool = False
    factor: float = 1.0
    decimals: int = 3
    unit: str = ""
    gain_unit: str = ""

    def value(self, value: float) -> str:
        return f"{self.factor * value:.{self.decimals}f}"

    def spread(self, mean: float, deviation: float) -> str:
        return f"{self.value(mean)} ± {self.value(deviation)}"


METRICS = {
    "accuracy": Metric("Accuracy", "accuracy %", True, 100, 1, " %", " points"),
    "nll": Metric("Negative log-likelihood", "NLL"),
    "ece": Metric("Expected calibration error", "ECE"),
    "brier": Metric("Brier score", "Brier"),
}


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy in equal bins of confidence."""

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    def calibration_error(self) -> float:
        share = self.count / self.count.sum()
        gap = (self.accuracy - self.confidence).abs()
        return float((share * torch.where(self.count > 0, gap, 0.0)).sum())

    def as_json(self) -> dict[str, list[float | None]]:
        empty = (self.count == 0).tolist()

        def column(values: Tensor) -> list[float | None]:
            return [None if gone else value for gone, value in zip(empty, values.tolist(), strict=True)]

        return {
            "edges": self.edges.tolist(),
            "confidence": column(self.confidence),
            "accuracy": column(self.accuracy),
            "count": self.count.tolist(),
        }


def reliability(probabilities: Tensor, labels: Tensor, bins: int = ECE_BINS) -> Reliability:
    """Bins (edge, next edge] of the largest probability; the first also holds 0."""
    confidence, predicted = probabilities.double().max(-1)
    correct = (predicted == labels).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=probabilities.device)
    index = (torch.bucketize(confidence, edges) - 1).clamp(0, bins - 1)
    count = torch.bincount(index, minlength=bins)
    safe = count.clamp_min(1)
    return Reliability(
        edges.cpu(),
        (torch.bincount(index, confidence, minlength=bins) / safe).cpu(),
        (torch.bincount(index, correct, minlength=bins) / safe).cpu(),
        count.cpu(),
    )


def pooled_reliability(parts: Sequence[Reliability]) -> Reliability:
    """The same bins over the predictions of all parts."""
    count = torch.stack([part.count for part in parts]).sum(0)
    safe = count.clamp_min(1)
    return Reliability(
        parts[0].edges,
        torch.stack([part.confidence * part.count for part in parts]).sum(0) / safe,
        torch.stack([part.accuracy * part.count for part in parts]).sum(0) / safe,
        count,
    )


def all_metrics(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Every metric of predicted ``probabilities`` (n, classes) against ``labels`` (n,)."""
    probabilities = probabilities.double()
    of_label = probabilities.gather(-1, labels[:, None]).squeeze(-1)
    squares = probabilities.square().sum(-1) - 2 * of_label + 1
    return {
        "accuracy": float((probabilities.argmax(-1) == labels).double().mean()),
        "nll": float(-of_label.clamp_min(SMALLEST_PROBABILITY).log().mean()),
        "ece": reliability(probabilities, labels).calibration_error(),
        "brier": float(squares.mean()),
    }
