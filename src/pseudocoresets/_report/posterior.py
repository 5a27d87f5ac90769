"""The page of a study: the full posterior against a coreset's, and distance and time against size."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from pseudocoresets._io.files import write_text
from pseudocoresets._io.pictures import data_address
from pseudocoresets._report.templates import rendered
from pseudocoresets._report.wording import number
from pseudocoresets.evaluation.distances import thin
from pseudocoresets.inference import sample_posterior
from pseudocoresets.workflows.study import Study, StudyRow
from pseudocoresets.workflows.study_plot import study_figure

POSTERIOR_PAGE = "posterior.html"
MOST_PARAMETERS = 5
"""Parameters of which marginals and pairs are drawn: those with the largest ratio of mean to deviation."""
DRAWS_SHOWN = 600
COLUMNS = (
    "Method",
    "Points",
    "Seed",
    "KL(full || coreset)",
    "by draws",
    "KL(coreset || full)",
    "Pareto k",
    "Time to build, s",
    "NUTS speed-up",
)


def write_posterior_page(study: Study, folder: str | os.PathLike[str]) -> Path:
    """Write ``posterior.html``, which needs nothing else, and return its path."""
    path = Path(folder) / POSTERIOR_PAGE
    data = study.data
    shown = nearest_row(study)
    drawings = [_drawing("Distance and time against size", study_figure(study), _about_sizes(study))]
    if shown is not None:
        about = f"Full posterior in grey, that of the coreset of {shown.size} points by {shown.method} in orange."
        drawings.append(_drawing("Marginals and pairs", pairs_figure(study, shown), about))
    text = rendered(
        "posterior.html",
        title=f"Coresets of {data.name}",
        summary=f"{data.model_name}, {len(data.rows):,} data, {data.model.size} parameters.",
        drawings=drawings,
        columns=COLUMNS,
        rows=[_cells(study, row) for row in study.rows],
        notes=study.notes,
    )
    write_text(path, text)
    return path


def nearest_row(study: Study) -> StudyRow | None:
    """The row whose posterior is nearest to the full one, among those that have a coreset."""
    measured = [row for row in study.rows if row.distances is not None and _cell(row) in study.coresets]
    return min(measured, key=lambda row: row.distances.kl if row.distances else 0.0, default=None)


def pairs_figure(study: Study, row: StudyRow) -> Any:
    """Marginals on the diagonal and pairs below it, of the parameters that stand out most."""
    from matplotlib.figure import Figure

    coreset = study.coresets[_cell(row)]
    samples = sample_posterior(
        coreset, "nuts", chains=2, model=study.data.model, samples=DRAWS_SHOWN // 2, warmup=150, seed=row.seed
    )
    gaussian = study.reference.gaussian
    score = gaussian.mean.abs() / gaussian.standard_deviation
    chosen = score.topk(min(MOST_PARAMETERS, len(score))).indices.sort().values
    full, core = (thin(draws, DRAWS_SHOWN)[:, chosen].numpy() for draws in (study.reference.draws, samples.draws))
    names = _names(study, chosen)
    count = len(names)
    figure = Figure(figsize=(2.1 * count, 2.1 * count), layout="constrained")
    grid = figure.subplots(count, count, squeeze=False)
    for i in range(count):
        for j in range(count):
            axes = grid[i][j]
            if j > i:
                axes.set_visible(False)
                continue
            if i == j:
                axes.hist(full[:, i], 30, density=True, color="0.6", histtype="stepfilled", alpha=0.6)
                axes.hist(core[:, i], 30, density=True, color="tab:orange", histtype="step", linewidth=1.5)
                axes.set_yticks([])
            else:
                axes.scatter(full[:, j], full[:, i], s=3, color="0.6", linewidths=0)
                axes.scatter(core[:, j], core[:, i], s=3, color="tab:orange", linewidths=0, alpha=0.6)
            axes.tick_params(labelsize=7)
            if i == count - 1:
                axes.set_xlabel(names[j], fontsize=8)
            if j == 0 and i > 0:
                axes.set_ylabel(names[i], fontsize=8)
    return figure


def _names(study: Study, chosen: Tensor) -> list[str]:
    columns = study.data.rows.columns
    known = len(columns) == study.data.model.size
    return [columns[i] if known else f"theta {i}" for i in chosen.tolist()]


def _about_sizes(study: Study) -> str:
    about = f"KL(full || coreset) {study.how_measured} and seconds to build by number of points."
    floor = study.noise_floor
    return f"{about} Fits to two references are {number(floor.kl_full_coreset)} apart." if floor.gaussian_fit else about


def _drawing(title: str, figure: Any, about: str) -> dict[str, str]:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return {"title": title, "source": data_address(buffer.getvalue(), "image/png"), "about": about}


def _cell(row: StudyRow) -> Any:
    return (row.method, row.size, row.seed)


def _cells(study: Study, row: StudyRow) -> list[str]:
    own = [row.made_by, str(row.size), str(row.seed)]
    found = row.distances
    if found is None:
        return [*own, f"failed: {row.failure}", *[""] * (len(COLUMNS) - len(own) - 1)]
    values = (found.kl_full_coreset, found.kl_by_draws, found.kl_coreset_full, found.pareto_k)
    return [*own, *(number(value) for value in (*values, row.build_seconds, study.speed_up(row)))]
