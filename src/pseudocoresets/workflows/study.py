"""Distance against size: several methods on one problem, measured against its reference posterior."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import write_json, write_tensors
from pseudocoresets.core.errors import InputError, PseudocoresetsError
from pseudocoresets.core.points import Points
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.data.tables import PosteriorData
from pseudocoresets.evaluation.distances import Distances, log_predictive, posterior_distances, thin
from pseudocoresets.methods.posterior_problem import PosteriorProblem
from pseudocoresets.methods.solvers import METHODS
from pseudocoresets.sources.reference import NutsPlan, PosteriorSample, reference_posterior, sample_posterior_of


@dataclass(frozen=True)
class StudyRow:
    """One coreset: how far its posterior is, and what it cost."""

    method: str
    size: int
    seed: int
    distances: Distances | None
    build_seconds: float
    """Construction, the approximation of the full posterior included where the method uses it."""
    seconds_per_draw: float
    """Of NUTS on the coreset."""
    r_hat: float
    failure: str | None = None

    def as_json(self) -> dict[str, Any]:
        distances = None if self.distances is None else self.distances.as_json()
        names = ("method", "size", "seed", "build_seconds", "seconds_per_draw", "r_hat", "failure")
        return {name: getattr(self, name) for name in names} | {"distances": distances}


@dataclass(frozen=True)
class Study:
    """All rows, the reference they are measured against, and the distance between two runs of it."""

    data: PosteriorData
    reference: PosteriorSample
    noise_floor: Distances
    rows: tuple[StudyRow, ...]
    coresets: dict[tuple[str, int, int], Points] = field(default_factory=dict)

    def speed_up(self, row: StudyRow) -> float:
        """How many times faster NUTS draws from the coreset's posterior than from the full one."""
        return self.reference.seconds_per_draw / row.seconds_per_draw

    def medians(self, metric: str) -> dict[str, dict[int, float]]:
        """method -> size -> median of a distance over the seeds."""
        table: dict[str, dict[int, list[float]]] = {}
        for row in self.rows:
            if row.distances is not None:
                table.setdefault(row.method, {}).setdefault(row.size, []).append(getattr(row.distances, metric))
        return {m: {s: statistics.median(v) for s, v in sizes.items()} for m, sizes in table.items()}

    def as_json(self) -> dict[str, Any]:
        problem = self.data.problem
        return {
            "data": self.data.name,
            "model": self.data.model_name,
            "points": problem.data_size,
            "parameters": problem.model.size,
            "reference": self.reference.summary(),
            "noise_floor": self.noise_floor.as_json(),
            "rows": [row.as_json() | {"speed_up": self.speed_up(row) if row.distances else None} for row in self.rows],
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``posterior.json``, ``distance.png`` and the coresets; returns the folder."""
        from pseudocoresets._report.study_plot import save_plot

        folder = Path(folder)
        write_json(folder / "posterior.json", self.as_json())
        save_plot(self, folder / "distance.png")
        for (method, size, seed), points in self.coresets.items():
            _save_points(points, folder / "coresets" / f"{method}-{size}-seed{seed}.safetensors")
        return folder


def _save_points(points: Points, path: Path) -> None:
    tensors = {"x": points.x, "y": points.y, "weights": points.weights}
    write_tensors(path, tensors, {"format": "posterior-coreset"})


def run_study(
    data: PosteriorData,
    methods: Sequence[str],
    sizes: Sequence[int],
    seeds: Sequence[int] = (0,),
    plan: NutsPlan | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Study:
    """Build every coreset, sample its posterior and measure the distance to the full one."""
    check_request(data.problem, methods, sizes)
    plan = plan or NutsPlan()
    reference = reference_posterior(data.problem, plan, 0, cache, progress)
    again = reference_posterior(data.problem, plan, 1, cache, progress)
    floor = posterior_distances(reference, again, data.problem.model, data.held_out)
    rows, coresets = [], {}
    with task(progress or Silent(), "coresets", len(methods) * len(sizes) * len(seeds)) as shown:
        for method in methods:
            for size in sizes:
                for seed in seeds:
                    row, points = _measure(data, reference, method, size, seed, plan)
                    rows.append(row)
                    if points is not None:
                        coresets[method, size, seed] = points
                    shown.advance(note=f"{method} {size}")
    return Study(data, reference, floor, tuple(rows), coresets)


def check_request(problem: PosteriorProblem, methods: Sequence[str], sizes: Sequence[int]) -> None:
    if not methods or not sizes:
        raise InputError("Name at least one method and one size.")
    for name in methods:
        METHODS[name]
    for size in sizes:
        if not 1 <= size <= problem.data_size:
            raise InputError(f"Sizes must lie between 1 and {problem.data_size}, the number of data; got {size}.")


def full_predictive(data: PosteriorData, reference: PosteriorSample) -> float:
    """Mean log predictive density of the held-out data under the full posterior."""
    return log_predictive(data.problem.model, thin(reference.samples), *data.held_out)


def _measure(
    data: PosteriorData, reference: PosteriorSample, method: str, size: int, seed: int, plan: NutsPlan
) -> tuple[StudyRow, Points | None]:
    problem, entry = data.problem, METHODS[method]
    began = time.perf_counter()
    try:
        if entry.uses_approximation:
            problem.approximation  # noqa: B018
            began = time.perf_counter() - problem.approximation_seconds
        points = entry.build(problem, size, seed)
        seconds = time.perf_counter() - began
        own_seed = derive_seed(seed, "coreset posterior", method, size)
        sample = sample_posterior_of(problem.model, points, plan, own_seed)
    except PseudocoresetsError as error:
        return StudyRow(
            method, size, seed, None, time.perf_counter() - began, float("nan"), float("nan"), str(error)
        ), None
    distances = posterior_distances(reference, sample, problem.model, data.held_out)
    return StudyRow(method, size, seed, distances, seconds, sample.seconds_per_draw, sample.r_hat), points
