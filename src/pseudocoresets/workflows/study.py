"""Distance against size: several methods on one problem, measured against its reference posterior."""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import write_json
from pseudocoresets._io.pictures import save_figure
from pseudocoresets.construction import construct
from pseudocoresets.construction.safeguard import CHECKED, OWN
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.points import content_of
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.large import LargeRows
from pseudocoresets.data.tables import PosteriorData
from pseudocoresets.evaluation.distances import Distances, distance, log_predictive, thin
from pseudocoresets.inference import sample_posterior
from pseudocoresets.methods import METHODS, build_method
from pseudocoresets.sources.gaussian_fit import GaussianFit
from pseudocoresets.sources.large import gaussian_reference, large_fit
from pseudocoresets.sources.reference import ReferenceRun, reference_posterior, require_agreement
from pseudocoresets.workflows.cells import Cell, Document, Outcome, as_number, as_text, run_cells
from pseudocoresets.workflows.parallel import processes, require_sendable

CHAINS = 4
COLUMNS = ("", "KL f||c", "by draws", "KL c||f", "Pareto k", "mean", "sd", "SW", "held-out", "build s", "faster")
CORESET = "coreset.safetensors"
BETWEEN_FITS = "between Gaussian fits"


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
    returned: str | None = None
    """What was nearest when the method's coreset was measured: ``own``, or something simpler that took its place."""

    @property
    def name(self) -> str:
        """The method and the size, and what took the place of the method's own coreset."""
        return f"{self.method} {self.size}{self._instead}"

    @property
    def made_by(self) -> str:
        """:attr:`name` without the size."""
        return f"{self.method}{self._instead}"

    @property
    def _instead(self) -> str:
        return f" = {self.returned}" if self.returned not in (None, OWN) else ""

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        return document | {"distances": None if self.distances is None else self.distances.as_json()}


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

    @property
    def title(self) -> str:
        data = self.data
        return f"{data.name}: {data.model_name}, n = {len(data.rows)}, {data.model.size} parameters"

    def cells(self) -> list[list[str]]:
        """The table as text, under ``COLUMNS``; the last row is the distance between two references."""
        floor = ["noise floor", *_numbers(self.noise_floor), "", "1"]
        return [*(self._cells(row) for row in self.rows), floor]

    def _cells(self, row: StudyRow) -> list[str]:
        if row.distances is None:
            return [row.name, "failed", *[""] * (len(COLUMNS) - 2)]
        return [row.name, *_numbers(row.distances), f"{row.build_seconds:.2f}", f"{self.speed_up(row):.1f}x"]

    @property
    def notes(self) -> list[str]:
        """What the numbers are, what replaced a method's own coreset, where estimates disagree, and what failed."""
        reference, fits = self.reference, "in closed form" if self.reference.exact else BETWEEN_FITS
        modes = f" of {reference.modes} modes" if reference.modes > 1 else ""
        notes = [
            f"KL of full (f) and coreset (c) both ways {fits}, and KL f||c by draws; Pareto k of c as a proposal for f "
            "(below 0.7, samples.corrected(data) gives expectations of f); relative errors of mean and sd, sliced "
            "Wasserstein distance, held-out log-likelihood, time to build, and how much faster NUTS draws than on all "
            "data. Noise floor: two independent runs of the reference, which must agree.",
            f"Reference: {len(reference.draws)} {reference.how}{modes} in {reference.seconds:.1f} s, "
            f"R-hat {reference.r_hat:.3f}; held-out log-likelihood of the full posterior "
            f"{full_predictive(self.data, reference):.4f}.",
        ]
        if (kinds := self.data.classes) != tuple(map(str, range(len(kinds)))):
            notes.append(f"Classes: {', '.join(f'{code} is {kind!r}' for code, kind in enumerate(kinds))}.")
        if any(row.returned not in (None, OWN) for row in self.rows):
            notes.append(
                "After '=': what was measured to be nearer than the method's own coreset and returned in its place."
            )
        noise = self.noise_floor.kl_full_coreset
        for row in self.rows:
            if row.failure is not None:
                notes.append(f"{row.name}, seed {row.seed}, failed: {row.failure}")
            elif row.distances is not None and (said := row.distances.disagreement(noise)) is not None:
                notes.append(f"{row.name}, seed {row.seed}: {said}.")
        return notes

    @property
    def how_measured(self) -> str:
        """What the divergences ``Distances.kl`` rest on."""
        if not self.noise_floor.gaussian_fit:
            return "in closed form"
        found = [row.distances for row in self.rows if row.distances is not None]
        return BETWEEN_FITS if any(each.kl_by_draws is None for each in found) else "by draws"

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
            "classes": list(self.data.classes),
            "units": {name: list(unit) for name, unit in self.data.units.items()},
            "reference": self.reference.summary() | {"how": self.reference.how},
            "noise_floor": self.noise_floor.as_json(),
            "rows": [row.as_json() | {"speed_up": self.speed_up(row) if row.distances else None} for row in self.rows],
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``posterior.json`` and, of what did not fail, ``distance.png`` and the coresets; returns the folder."""
        from pseudocoresets.workflows.study_plot import study_figure

        folder = Path(folder)
        write_json(folder / "posterior.json", self.as_json())
        if self.coresets:
            save_figure(folder / "distance.png", study_figure(self))
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
    jobs: int = 1,
) -> Study:
    """Build every coreset, sample its posterior and measure the distance to the full one.

    Args:
        draws: NUTS draws of each of the four chains.
        warmup: Steps before them; a third as many, at least 150, unless given.
        cache: A folder in which references are kept.
        folder: Where finished coresets are kept, so that a study goes on where an earlier one was stopped.
        jobs: Processes; with more than one, which need a ``folder``, a script must call this under
            ``if __name__ == "__main__":``.
    """
    check_request(data, methods, sizes)
    if jobs > 1:
        require_sendable(data, "This study's model")
        if folder is None:
            raise InputError("A study in several processes (jobs) needs a folder in which they leave their coresets.")
    length = (draws, warmup or max(150, draws // 3))
    large = isinstance(data.rows, LargeRows)
    fit = large_fit(data.model, data.rows) if isinstance(data.rows, LargeRows) else GaussianFit(data.model, data.rows)
    began = time.perf_counter()
    fit.yardstick.prepare()
    price = time.perf_counter() - began
    with processes(1 if large else jobs) as mapper:
        references = partial(_reference, data, length, cache, fit)
        with task(progress or Silent(), "reference posterior, twice", 2) as shown:
            reference, again = _advancing(mapper(references, (0, 1)), shown)
        require_agreement(reference, again)
        floor = distance(again, reference, data.model, data.held_out)
        judge = _RowJudge(data, fit, reference, length, None if folder is None else Path(folder), price)
        cells = [Cell(*each) for each in itertools.product(methods, sizes, seeds)]
        rows = tuple(judge.row(outcome) for outcome in run_cells(cells, judge, progress, mapper=mapper))
    return Study(data, reference, floor, rows, judge.coresets)


def _reference(
    data: PosteriorData,
    length: tuple[int, int],
    cache: str | os.PathLike[str] | None,
    fit: GaussianFit,
    seed: int,
) -> ReferenceRun:
    if isinstance(data.rows, LargeRows):
        return gaussian_reference(fit, data.rows, length[0], CHAINS, seed, by_draws=seed > 0)
    return reference_posterior(data.rows, data.model, *length, CHAINS, seed=seed, cache=cache, fit=fit)


def _advancing(items: Iterable[ReferenceRun], shown: Progress) -> Iterator[ReferenceRun]:
    for item in items:
        shown.advance()
        yield item


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
    price: float
    """Seconds for what every coreset but the simplest needs to know of the full posterior."""
    coresets: dict[Cell, Coreset] = field(default_factory=dict)

    def folder(self, cell: Cell) -> Path | None:
        return None if self.root is None else self.root / "cells" / _label(cell)

    def identity(self, cell: Cell) -> Document:
        return {"cell": cell, "length": self.length, "content": fingerprint(self._content, build_method(cell.method))}

    @cached_property
    def _content(self) -> str:
        return fingerprint(self.data.model, *content_of(self.data.rows), self.data.held_out)

    def measure(self, cell: Cell) -> Document:
        method, size, seed = cell
        data, (draws, warmup) = self.data, self.length
        built = build_method(method)
        price = self.price if built.needs_source or not built.is_baseline else 0.0
        began = time.perf_counter()
        coreset = construct(data.rows, self.fit, method, model=data.model, size=size, seed=seed, progress=Silent())
        seconds = time.perf_counter() - began + price
        own_seed = derive_seed(seed, "coreset posterior", method, size)
        samples = sample_posterior(
            coreset,
            "nuts",
            chains=CHAINS,
            model=data.model,
            samples=draws,
            warmup=warmup,
            seed=own_seed,
            progress=Silent(),
        )
        self.coresets[cell] = coreset
        if (folder := self.folder(cell)) is not None:
            coreset.save(folder / CORESET)
        dense = None if isinstance(data.rows, LargeRows) else data.rows
        return {
            "distances": asdict(distance(samples, self.reference, data.model, data.held_out, data=dense)),
            "returned": coreset.configuration.get(CHECKED, {}).get("returned"),
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
        distances, seconds = Distances.from_json(found["distances"]), found["build_seconds"]
        per_draw, r_hat = as_number(found["seconds_per_draw"]), as_number(found["r_hat"])
        return StudyRow(*cell, distances, seconds, per_draw, r_hat, returned=found.get("returned"))


def _numbers(distances: Distances) -> list[str]:
    """The distances as text, in the order of ``COLUMNS``."""
    first = (distances.kl_full_coreset, distances.kl_by_draws, distances.kl_coreset_full)
    second = (distances.mean_error, distances.deviation_error, distances.sliced_wasserstein)
    return [
        *(as_text(value, ".2g") for value in first),
        as_text(distances.pareto_k, ".1f"),
        *(as_text(value, ".2g") for value in second),
        as_text(distances.held_out_log_likelihood, ".4f"),
    ]


def _label(cell: Cell) -> str:
    return f"{cell.method}-{cell.size}-seed{cell.seed}"
