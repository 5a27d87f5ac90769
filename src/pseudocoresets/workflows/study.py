"""Distance against size: several methods on one problem, measured against its reference posterior."""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import write_json
from pseudocoresets.construction import construct
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.progress import Progress
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.tables import PosteriorData
from pseudocoresets.evaluation.distances import Distances, distance, log_predictive, thin
from pseudocoresets.inference import sample_posterior
from pseudocoresets.methods import METHODS, build_method
from pseudocoresets.sources.gaussian_fit import GaussianFit
from pseudocoresets.sources.reference import ReferenceRun, reference_posterior
from pseudocoresets.workflows.cells import Cell, Document, Outcome, as_number, run_cells

CHAINS = 4
CORESET = "coreset.safetensors"


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
    coresets: dict[Cell, Coreset] = field(default_factory=dict)

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
        for cell, coreset in self.coresets.items():
            coreset.save(folder / "coresets" / f"{_label(cell)}.safetensors")
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
    folder: str | os.PathLike[str] | None = None,
) -> Study:
    """Build every coreset, sample its posterior and measure the distance to the full one.

    Args:
        draws: NUTS draws of each of the four chains.
        warmup: Steps before them; a third as many, at least 150, unless given.
        cache: A folder in which references are kept.
        folder: Where finished coresets are kept, so that a study goes on where an earlier one was stopped.
    """
    check_request(data, methods, sizes)
    length = (draws, warmup or max(150, draws // 3))
    fit = GaussianFit(data.model, data.rows)
    reference, again = (
        reference_posterior(data.rows, data.model, *length, CHAINS, seed=seed, cache=cache, fit=fit, progress=progress)
        for seed in (0, 1)
    )
    floor = distance(again, reference, data.model, data.held_out)
    judge = _RowJudge(data, fit, reference, length, None if folder is None else Path(folder))
    cells = [Cell(*each) for each in itertools.product(methods, sizes, seeds)]
    rows = tuple(judge.row(outcome) for outcome in run_cells(cells, judge, progress))
    return Study(data, reference, floor, rows, judge.coresets)


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


@dataclass(frozen=True)
class _RowJudge:
    """Coresets of rows: the distance of each one's posterior, sampled by NUTS, to the reference."""

    data: PosteriorData
    fit: GaussianFit
    reference: ReferenceRun
    length: tuple[int, int]
    root: Path | None
    coresets: dict[Cell, Coreset] = field(default_factory=dict)

    def folder(self, cell: Cell) -> Path | None:
        return None if self.root is None else self.root / "cells" / _label(cell)

    def identity(self, cell: Cell) -> Document:
        return {"cell": cell, "length": self.length, "content": fingerprint(self._content, build_method(cell.method))}

    @cached_property
    def _content(self) -> str:
        return fingerprint(self.data.model, *self.data.rows.batches(), self.data.held_out)

    def measure(self, cell: Cell) -> Document:
        method, size, seed = cell
        data, (draws, warmup) = self.data, self.length
        price = self.fit.seconds if build_method(method).needs_source else 0.0
        began = time.perf_counter()
        coreset = construct(data.rows, self.fit, method, model=data.model, size=size, seed=seed)
        seconds = time.perf_counter() - began + price
        own_seed = derive_seed(seed, "coreset posterior", method, size)
        samples = sample_posterior(
            coreset, "nuts", chains=CHAINS, model=data.model, samples=draws, warmup=warmup, seed=own_seed
        )
        self.coresets[cell] = coreset
        if (folder := self.folder(cell)) is not None:
            coreset.save(folder / CORESET)
        return {
            "distances": asdict(distance(samples, self.reference, data.model, data.held_out)),
            "build_seconds": seconds,
            "seconds_per_draw": samples.seconds_per_draw,
            "r_hat": samples.r_hat,
        }

    def row(self, outcome: Outcome[Cell]) -> StudyRow:
        cell, found = outcome.cell, outcome.document
        if found is None:
            return StudyRow(*cell, None, outcome.seconds, math.nan, math.nan, outcome.failure)
        if cell not in self.coresets and (folder := self.folder(cell)) is not None:
            self.coresets[cell] = Coreset.load(folder / CORESET)
        held_out = {"held_out_log_likelihood": found["distances"]["held_out_log_likelihood"]}
        distances = Distances(**{name: as_number(value) for name, value in found["distances"].items()} | held_out)
        per_draw, r_hat = as_number(found["seconds_per_draw"]), as_number(found["r_hat"])
        return StudyRow(*cell, distances, found["build_seconds"], per_draw, r_hat)


def _label(cell: Cell) -> str:
    return f"{cell.method}-{cell.size}-seed{cell.seed}"
