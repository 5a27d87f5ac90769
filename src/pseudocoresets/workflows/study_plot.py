"""Distance against coreset size, as a picture."""

from __future__ import annotations

from typing import Any

from pseudocoresets.methods import build_method
from pseudocoresets.workflows.study import BETWEEN_FITS, Study


def study_figure(study: Study) -> Any:
    """KL against size beside the time to build against size; synthetic points in solid lines, real ones dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _distances(left, study)
    _times(right, study)
    figure.suptitle(f"{study.data.name}, {study.data.model_name}, n = {len(study.data.rows):,}")
    return figure


def _distances(axes: Any, study: Study) -> None:
    for method, sizes in study.medians("kl").items():
        style = "-" if _synthetic(method) else "--"
        floored = [max(value, 1e-12) for value in sizes.values()]
        axes.plot(list(sizes), floored, style, marker="o", label=method)
    if study.how_measured == BETWEEN_FITS:
        floor = study.noise_floor.kl_full_coreset
        axes.axhline(floor, color="grey", lw=1, label="two runs of the reference")
    axes.set(xscale="log", yscale="log", xlabel="points", ylabel=f"KL(full || coreset) {study.how_measured}")
    axes.legend(fontsize=8)


def _times(axes: Any, study: Study) -> None:
    for method in dict.fromkeys(row.method for row in study.rows):
        rows = [row for row in study.rows if row.method == method and row.distances is not None]
        style = "-" if _synthetic(method) else "--"
        axes.plot([row.size for row in rows], [row.build_seconds for row in rows], style, marker="o", label=method)
    axes.axhline(study.reference.seconds, color="grey", lw=1, label="NUTS on all data")
    axes.set(xscale="log", yscale="log", xlabel="points", ylabel="seconds to build")
    axes.legend(fontsize=8)


def _synthetic(method: str) -> bool:
    return build_method(method).synthetic
