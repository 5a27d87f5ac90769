"""The table of a run: control, coreset, and the gain of one over the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pseudocoresets._report.wording import NOTHING, count_of, is_number, with_minus
from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.evaluation.metrics import METRICS, Metric


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
    rows = [_single_row(key, metrics, control) for key in METRICS]
    groups = [{"name": f"Mean ± deviation over {_runs_text(metrics, control)}", "rows": rows}]
    own, other = section(metrics, "ensemble"), section(control, "ensemble")
    if own or other:
        rows = [_row(metric, own.get(key), other.get(key)) for key, metric in METRICS.items()]
        groups.append({"name": "All chains and samples averaged (Bayesian model average)", "rows": rows})
    return groups + _calibrated_groups(section(metrics, "calibrated"), section(control, "calibrated"))


def calibration_powers(own: Mapping[str, Any], control: Mapping[str, Any]) -> str:
    """Those of the averages of the coreset and of the control, given what was found for both once calibrated."""
    known = {"coreset": average(own, "exponent"), "control": average(control, "exponent")}
    return ", ".join(f"{name} {power:.2f}" for name, power in known.items() if power is not None)


def _calibrated_groups(own: Mapping[str, Any], control: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The average once more, raised to the power that training images chose, where there is one."""
    if not own:
        return []
    averages = section(own, "ensemble"), section(control, "ensemble")
    rows = [_row(metric, *(each.get(key) for each in averages)) for key, metric in METRICS.items()]
    powers = calibration_powers(own, control)
    chosen = f", chosen on {own['images']:,} training images" if is_number(own.get("images")) else ""
    return [{"name": f"The same average calibrated: to the power ({powers}){chosen}", "rows": rows}]


def _single_row(key: str, own: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, str]:
    row = _row(METRICS[key], average(own, key), average(control, key))
    for name, block in (("coreset", own), ("control", control)):
        mean, deviation = average(block, key), _field(block, key, "std")
        if mean is not None and is_number(deviation):
            row[name] = with_minus(METRICS[key].spread(mean, deviation) + METRICS[key].unit)
    return row


def _row(metric: Metric, own: Any, control: Any) -> dict[str, str]:
    gain, verdict = _gain(metric, own, control)
    return {
        "metric": metric.name,
        "aim": "higher is better" if metric.higher_is_better else "lower is better",
        "control": _value(metric, control),
        "coreset": _value(metric, own),
        "gain": gain,
        "verdict": verdict,
    }


def _value(metric: Metric, value: Any) -> str:
    return with_minus(metric.value(value) + metric.unit) if is_number(value) else NOTHING


def _gain(metric: Metric, own: Any, control: Any) -> tuple[str, str]:
    """The difference, and in a word whether it is for the better."""
    if not (is_number(own) and is_number(control)):
        return NOTHING, ""
    difference = round(metric.factor * (own - control), metric.decimals)
    if difference == 0:
        return f"{0:.{metric.decimals}f}{metric.gain_unit}", "same"
    text = with_minus(f"{difference:+.{metric.decimals}f}{metric.gain_unit}")
    return text, "better" if (difference > 0) == metric.higher_is_better else "worse"


def _runs_text(own: Mapping[str, Any], control: Mapping[str, Any]) -> str:
    """How many runs stand behind the means of the two sides."""
    runs, others = (max(_count(_field(block, key, "values")) for key in METRICS) for block in (own, control))
    if not runs:
        return "runs"
    return f"{count_of(runs, 'run')}" + (f" (control: {others})" if others not in (0, runs) else "")


def _count(values: Any) -> int:
    return len(values) if isinstance(values, list) else 0


def _field(block: Mapping[str, Any], key: str, field: str) -> Any:
    recorded = block.get(key)
    return recorded.get(field) if isinstance(recorded, Mapping) else None
