"""The table of a run: control, coreset, and the gain of one over the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pseudocoresets._report.wording import NOTHING, count_of, is_number, with_minus
from pseudocoresets.core.errors import FileFormatError


@dataclass(frozen=True)
class Metric:
    """How one metric is written, and which way is better."""

    key: str
    name: str
    higher_is_better: bool = False
    factor: float = 1.0
    decimals: int = 3
    unit: str = ""
    gain_unit: str = ""

    def value(self, value: Any) -> str:
        if not is_number(value):
            return NOTHING
        return with_minus(f"{self.factor * value:.{self.decimals}f}{self.unit}")

    def spread(self, mean: Any, deviation: Any) -> str:
        if not is_number(mean) or not is_number(deviation):
            return self.value(mean)
        centre, around = (f"{self.factor * number:.{self.decimals}f}" for number in (mean, deviation))
        return with_minus(f"{centre} ± {around}{self.unit}")

    def gain(self, own: Any, control: Any) -> tuple[str, str]:
        """The difference, and in a word whether it is for the better."""
        if not (is_number(own) and is_number(control)):
            return NOTHING, ""
        difference = round(self.factor * (own - control), self.decimals)
        if difference == 0:
            return f"{0:.{self.decimals}f}{self.gain_unit}", "same"
        text = with_minus(f"{difference:+.{self.decimals}f}{self.gain_unit}")
        return text, "better" if (difference > 0) == self.higher_is_better else "worse"


METRICS = (
    Metric("accuracy", "Accuracy", True, 100, 1, " %", " points"),
    Metric("nll", "Negative log-likelihood"),
    Metric("ece", "Expected calibration error"),
    Metric("brier", "Brier score"),
)


def average(block: Mapping[str, Any] | None, key: str) -> float | None:
    """The mean over runs of one metric, if it was recorded."""
    recorded = (block or {}).get(key)
    mean = recorded.get("mean") if isinstance(recorded, Mapping) else recorded
    return float(mean) if mean is not None and is_number(mean) else None


def section(metrics: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested object of the metrics; empty where it is missing or null."""
    nested = metrics.get(key)
    if nested is None:
        return {}
    if not isinstance(nested, Mapping):
        raise FileFormatError(
            f"The metrics hold the type {type(nested).__name__} as '{key}' where a JSON object should be; "
            "restore metrics.json or run again."
        )
    return nested


def result_groups(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Single runs first, then the average over all chains and samples where it was taken."""
    control = section(metrics, "control")
    rows = [_single_row(metric, metrics, control) for metric in METRICS]
    groups = [{"name": f"Mean ± deviation over {_runs_text(metrics, control)}", "rows": rows}]
    own, other = section(metrics, "ensemble"), section(control, "ensemble")
    if own or other:
        rows = [_row(metric, own.get(metric.key), other.get(metric.key)) for metric in METRICS]
        groups.append({"name": "All chains and samples averaged (Bayesian model average)", "rows": rows})
    return groups


def _single_row(metric: Metric, own: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, str]:
    row = _row(metric, average(own, metric.key), average(control, metric.key))
    for name, block in (("coreset", own), ("control", control)):
        row[name] = metric.spread(average(block, metric.key), _field(block, metric.key, "std"))
    return row


def _row(metric: Metric, own: Any, control: Any) -> dict[str, str]:
    gain, verdict = metric.gain(own, control)
    return {
        "metric": metric.name,
        "aim": "higher is better" if metric.higher_is_better else "lower is better",
        "control": metric.value(control),
        "coreset": metric.value(own),
        "gain": gain,
        "verdict": verdict,
    }


def _runs_text(own: Mapping[str, Any], control: Mapping[str, Any]) -> str:
    """How many runs stand behind the means of the two sides."""
    runs, others = (max(_count(_field(block, metric.key, "values")) for metric in METRICS) for block in (own, control))
    if not runs:
        return "runs"
    return f"{count_of(runs, 'run')}" + (f" (control: {others})" if others not in (0, runs) else "")


def _count(values: Any) -> int:
    return len(values) if isinstance(values, list) else 0


def _field(block: Mapping[str, Any], key: str, field: str) -> Any:
    recorded = block.get(key)
    return recorded.get(field) if isinstance(recorded, Mapping) else None
