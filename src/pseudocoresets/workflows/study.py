"""Distance against size: several methods on one problem, measured against its reference posterior."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import write_json
from pseudocoresets.construction import construct
from pseudocoresets.core.errors import InputError, PseudocoresetsError
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.tables import PosteriorData
from pseudocoresets.evaluation.distances import Distances, distance, log_predictive, thin
from pseudocoresets.inference import sample_posterior
from pseudocoresets.methods import METHODS, build_method
from pseudocoresets.sources.gaussian_fit import GaussianFit
from pseudocoresets.sources.reference import ReferenceRun, reference_posterior

CHAINS = 4


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
    reference: ReferenceRun
    noise_floor: Distances
    rows: tuple[StudyRow, ...]
    coresets: dict[tuple[str, int, int], Coreset] = field(default_factory=dict)

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
        return {
            "data": self.data.name,
            "model": self.data.model_name,
            "points": len(self.data.rows),
            "parameters": self.data.model.size,
            "reference": self.reference.summary(),
            "noise_floor": self.noise_floor.as_json(),
            "rows": [row.as_json() | {"speed_up": self.speed_up(row) if row.distances else None} for row in self.rows],
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``posterior.json``, ``distance.png`` and the coresets; returns the folder."""
        from pseudocoresets.workflows.study_plot import save_plot

        folder = Path(folder)
        write_json(folder / "posterior.json", self.as_json())
        save_plot(self, folder / "distance.png")
        for (method, size, seed), coreset in self.coresets.items():
            coreset.save(folder / "coresets" / f"{method}-{size}-seed{seed}.safetensors")
        return folder


def run_study(
    data: PosteriorData,
    methods: Sequence[str],
    sizes: Sequence[int],
    seeds: Sequence[int] = (0,),
    draws: int = 1000,
    warmup: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Study:
    """Build every coreset, sample its posterior and measure the distance to the full one.

    Args:
        draws: NUTS draws of each of the four chains.
        warmup: Steps before them; a third as many, at least 150, unless given.
        cache: A folder in which references are kept.
    """
    check_request(data, methods, sizes)
    length = (draws, warmup or max(150, draws // 3))
    fit = GaussianFit(data.model, data.rows)
    reference, again = (
        reference_posterior(data.rows, data.model, *length, CHAINS, seed=seed, cache=cache, fit=fit, progress=progress)
        for seed in (0, 1)
    )
    floor = distance(again, reference, data.model, data.held_out)
    rows, coresets = [], {}
    with task(progress or Silent(), "coresets", len(methods) * len(sizes) * len(seeds)) as shown:
        for method, size, seed in itertools.product(methods, sizes, seeds):
            row, coreset = _measure(data, fit, reference, method, size, seed, length)
            rows.append(row)
            if coreset is not None:
                coresets[method, size, seed] = coreset
            shown.advance(note=f"{method} {size}")
    return Study(data, reference, floor, tuple(rows), coresets)


def check_request(data: PosteriorData, methods: Sequence[str], sizes: Sequence[int]) -> None:
    if not methods or not sizes:
        raise InputError("Name at least one method and one size.")
    for name in methods:
        METHODS[name]
    for size in sizes:
        if not 1 <= size <= len(data.rows):
            raise InputError(f"Sizes must lie between 1 and {len(data.rows)}, the number of data; got {size}.")


def full_predictive(data: PosteriorData, reference: ReferenceRun) -> float:
    """Mean log predictive density of the held-out data under the full posterior."""
    return log_predictive(data.model, thin(reference.draws), *data.held_out)


def _measure(
    data: PosteriorData,
    fit: GaussianFit,
    reference: ReferenceRun,
    method: str,
    size: int,
    seed: int,
    length: tuple[int, int],
) -> tuple[StudyRow, Coreset | None]:
    price = fit.seconds if build_method(method).needs_source else 0.0
    began = time.perf_counter()
    try:
        coreset = construct(data.rows, fit, method, model=data.model, size=size, seed=seed)
        seconds = time.perf_counter() - began + price
        own_seed = derive_seed(seed, "coreset posterior", method, size)
        samples = sample_posterior(
            coreset, "nuts", chains=CHAINS, model=data.model, samples=length[0], warmup=length[1], seed=own_seed
        )
    except PseudocoresetsError as error:
        nan = float("nan")
        return StudyRow(method, size, seed, None, time.perf_counter() - began, nan, nan, str(error)), None
    distances = distance(samples, reference, data.model, data.held_out)
    return StudyRow(method, size, seed, distances, seconds, samples.seconds_per_draw, samples.r_hat), coreset
