"""Which cells are computed, in which order, within which time and on which devices.

The first seed of every table comes before the second of any; then tables go in the order of the catalogue, the paper's
own method and our best before rivals, and all judgements of a coreset follow one another. With a budget, a cell is left
out if it would not be done in time, by its estimate and by how much longer than theirs those before it took. Controls
and starts are judged only beside a coreset that is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.mapping import Mapper, in_this_process
from pseudocoresets.core.progress import Silent, task
from pseudocoresets.core.registry import Registry
from pseudocoresets.core.text import shortened
from pseudocoresets.data import find_entry
from pseudocoresets.inference.settings import PROTOCOLS
from pseudocoresets.workflows.cells import RESULT, Document, Judge, Outcome, lost_cell, run_cells, whole_result
from pseudocoresets.workflows.place import Workplace
from pseudocoresets.workflows.plan import Plan
from pseudocoresets.workflows.reproduce.catalogue import TABLES
from pseudocoresets.workflows.reproduce.cells import VARIANTS, ReproductionCell
from pseudocoresets.workflows.reproduce.judge import CONSTRUCTION, Order, ReproductionJudge, construction_part
from pseudocoresets.workflows.reproduce.scale import Scale
from pseudocoresets.workflows.run import spread_experts

FIRST_VARIANTS = ("published", "best")
PACE = 0.0075, 8.1e-5
"""Seconds of an iteration of cd with k = 100 on one H200: these, and these for each image (docs/speed.md)."""
DEARER = {"bptt": 1.5, "fkl": 3.0, "rkl": 3.0, "wasserstein": 1.5, "fkl-hmc": 8.0, "fkl-kfl": 8.0, "psvi": 10.0}
"""Than cd, an iteration of these methods."""
PACES = {
    "dm": (0.0017, 1.5e-6),
    "gm": (0.007, 1.5e-4),
    "dsa": (0.007, 1.5e-4),
    "cafe": (0.012, 6e-5),
    "cafe-dsa": (0.012, 6e-5),
    "mtt": (0.2, 4e-3),
    "dd": (0.2, 4e-3),
    "ld": (0.05, 1e-3),
    "kip": (0.01, 6e-3),
}
"""The same of methods that have another pace; dm's is measured (benchmarks/NOTES.md)."""
EXPERT_IMAGES_PER_SECOND = 800_000
OTHER_NETWORKS = {"alexnet": 6.0, "vgg11": 12.0, "resnet18": 30.0}
"""How much slower than a ConvNet of three blocks networks without kernels of their own are (benchmarks/NOTES.md)."""
SHIFT_SECONDS, ATTACK_SECONDS = 90.0, 300.0


@dataclass(frozen=True)
class Wanted:
    """Which part of the catalogue is asked for; an empty choice is everything."""

    tables: Sequence[str] = ()
    datasets: Sequence[str] = ()
    sizes: Sequence[int] = ()
    variants: Sequence[str] = ()
    protocols: Sequence[str] = ()
    seeds: int = 1
    only: Sequence[tuple[str, int]] = ()
    """Variants at so many images per class, in the order of their worth."""

    def __post_init__(self) -> None:
        for name in self.tables:
            TABLES[name]
        coresets = [cell.made for table in TABLES.values() for cell in table.cells()]
        datasets = {made.dataset: None for made in coresets}
        variants = (*self.variants, *(variant for variant, _ in self.only))
        for names, known in (
            (variants, Registry("variant", VARIANTS)),
            (self.datasets, Registry("data set", datasets)),
            (self.protocols, Registry("protocol", PROTOCOLS)),
        ):
            for name in names:
                known[name]
        sizes = sorted({made.ipc for made in coresets})
        for size in (*self.sizes, *(size for _, size in self.only)):
            if size not in sizes:
                known_sizes = ", ".join(map(str, sizes))
                raise InputError(f"The tables have {known_sizes} images per class; got {shortened(str(size))}.")

    def cells(self, order: Order) -> list[ReproductionCell]:
        """In the order of their worth, each once."""
        plain = [cell for name in self.tables or TABLES for cell in TABLES[name].cells() if self._asks_for(cell)]
        first = list(dict.fromkeys(order.scale.cell(cell) for cell in plain))
        rank = {cell.made: (self._rank(cell), index) for index, cell in reversed(list(enumerate(first)))}
        ordered = sorted(first, key=lambda cell: rank[cell.made])
        every = [list(cell.seeded(self.seeds)) for cell in ordered]
        return [seeded[seed] for seed in range(self.seeds) for seeded in every]

    def _asks_for(self, cell: ReproductionCell) -> bool:
        asked = (
            (self.datasets, cell.made.dataset),
            (self.sizes, cell.made.ipc),
            (self.variants, cell.made.variant),
            (self.protocols, cell.protocol),
            (self.only, (cell.made.variant, cell.made.ipc)),
        )
        return all(not choice or value in choice for choice, value in asked)

    def _rank(self, cell: ReproductionCell) -> int:
        variant, place = cell.made.variant, (cell.made.variant, cell.made.ipc)
        if place in self.only:
            return self.only.index(place)
        return FIRST_VARIANTS.index(variant) if variant in FIRST_VARIANTS else len(FIRST_VARIANTS)


def missing(cell: ReproductionCell, order: Order) -> str | None:
    """What is not here that the cell needs."""
    if not VARIANTS[cell.made.variant].available:
        return f"there is no method '{VARIANTS[cell.made.variant].method}'"
    if not find_entry(cell.made.dataset).is_present(order.data_dir):
        return f"'{order.data_dir}' does not hold {cell.made.dataset}"
    return None


def is_done(cell: ReproductionCell, order: Order) -> bool:
    """Whether it is there as it is asked for: one of fewer iterations or other experts will be computed again."""
    return _holds(order.folder(cell), order.scale.plan(cell).as_json())


def _holds(folder: Path, plan: Document) -> bool:
    """Whether there is a result of that plan."""
    found = whole_result(folder / RESULT)
    return found is not None and found.get("plan") == json.loads(json.dumps(plan))


def estimate(cells: Iterable[ReproductionCell], order: Order) -> float:
    """Seconds on one H200, of what is not there yet; cells share coresets and experts."""
    parts: dict[str, float] = {}
    for cell in cells:
        parts |= _parts(cell, order)
    return sum(parts.values())


def _is_made(cell: ReproductionCell, order: Order) -> bool:
    """Whether its coreset is there."""
    plan = order.scale.plan(ReproductionCell(cell.made))
    made = _holds(order.folder(cell).parent / CONSTRUCTION, construction_part(plan))
    return made or order.recorded(cell) is not None


def _parts(cell: ReproductionCell, order: Order) -> dict[str, float]:
    """The seconds of judging, constructing and training experts, each under what it is done for."""
    if is_done(cell, order):
        return {}
    plan = order.scale.plan(cell)
    found = {str(cell): _judging(cell, plan, order.scale)}
    to_make = cell.role == "coreset" and not _is_made(cell, order)
    if to_make:
        found[cell.made.slug] = _constructing(cell, plan, order)
    needs_experts = plan.protocol == "expert" or (to_make and plan.needs_experts())
    if needs_experts and not (order.expert_folder(cell) / "store.json").is_file():
        found[str(order.expert_folder(cell))] = _training(plan)
    return found


def _training(plan: Plan) -> float:
    images = find_entry(plan.dataset).train_count
    return _path_factor(plan.network) * plan.expert_count * plan.experts.epochs * images / EXPERT_IMAGES_PER_SECOND


def _constructing(cell: ReproductionCell, plan: Plan, order: Order) -> float:
    stages = [(stage.method, stage.construction.iterations) for stage in plan.stages if stage.learns]
    if VARIANTS[cell.made.variant].chooses_rate:
        stages.append((plan.method, len(order.scale.rates) * order.scale.rate_iterations))
    seconds = (DEARER.get(method, 1.0) * _pace(plan, method) * iterations for method, iterations in stages)
    return _path_factor(plan.network) * sum(seconds) + 5.0


def _judging(cell: ReproductionCell, plan: Plan, scale: Scale) -> float:
    if cell.test in ("cost", "pictures"):
        return 1.0
    draws = plan.control_draws if cell.role == "control" and cell.test == "clean" else 1
    adjusted = 20.0 if cell.sampler == "hmc" else 1.0
    steps = 0 if cell.role == "starts" else plan.sampling.steps
    sampling = adjusted * _path_factor(cell.network or plan.network) * _pace(plan) * steps / 20
    extra = 0.0 if scale.is_smoke else {"shift": SHIFT_SECONDS, "attack": ATTACK_SECONDS}.get(cell.test, 0.0)
    return draws * (2.0 + sampling) + extra * _path_factor(cell.network or plan.network)


def _pace(plan: Plan, method: str = "cd") -> float:
    fixed, for_each = PACES.get(method, PACE)
    return fixed + for_each * plan.construction.ipc * len(find_entry(plan.dataset).classes)


def _path_factor(network: str) -> float:
    return OTHER_NETWORKS.get(network, 1.0)


@dataclass
class Clock:
    """Says whether there is time; what was afforded before took as long as has passed since the beginning."""

    began: float
    until: float | None = None
    estimated: float = 0.0
    """Seconds of everything afforded so far, by estimate."""

    def affords(self, seconds: float) -> bool:
        now = time.time()
        slower = max(1.0, (now - self.began) / self.estimated) if self.estimated else 1.0
        if self.until is not None and now + slower * seconds > self.until:
            return False
        self.estimated += seconds
        return True


def compute(
    cells: Sequence[ReproductionCell],
    order: Order,
    place: Workplace,
    budget: float | None = None,
    mapper: Mapper = in_this_process,
) -> Iterator[Outcome[ReproductionCell]]:
    """The cells, a coreset with all its judgements after another, wherever ``mapper`` has them computed.

    Those that are done are read. Somewhere else than here experts come first, unless time is limited.
    """
    order = order.anywhere()
    judge = ReproductionJudge(order, replace(place, progress=Silent()))
    clock = Clock(time.time(), None if budget is None else time.time() + budget)
    if budget is None:
        for cell in _first_of_each_store(cells, order):
            plan = order.scale.plan(cell)
            train = partial(judge.train_block, cell)
            spread_experts(train, plan.dataset, plan.expert_count, mapper, place.progress)
    coresets = [list(group) for _, group in groupby(cells, key=lambda cell: cell.made)]
    with task(place.progress, "coresets", len(coresets)) as shown:
        for outcomes in mapper(partial(judge_coreset, judge=judge, order=order, clock=clock), coresets, _lost):
            yield from outcomes
            shown.advance(note=str(outcomes[-1].cell) if outcomes else "")


def judge_coreset(
    cells: Sequence[ReproductionCell], judge: Judge[ReproductionCell], order: Order, clock: Clock
) -> list[Outcome[ReproductionCell]]:
    """All judgements of a coreset that there is time for."""

    def affordable(cell: ReproductionCell) -> bool:
        return (cell.role == "coreset" or _is_made(cell, order)) and clock.affords(estimate([cell], order))

    with threads_for((1,) if order.scale.is_smoke else (3, 32, 32)):
        return list(run_cells(cells, judge, affordable=affordable))


def _lost(cells: Sequence[ReproductionCell], why: str) -> list[Outcome[ReproductionCell]]:
    return [lost_cell(cell, why) for cell in cells]


def _first_of_each_store(cells: Sequence[ReproductionCell], order: Order) -> Iterable[ReproductionCell]:
    """A cell for each folder of experts that cells that are not done need."""
    found: dict[Path, ReproductionCell] = {}
    for cell in cells:
        if not is_done(cell, order) and order.scale.plan(cell).needs_experts():
            found.setdefault(order.expert_folder(cell), cell)
    return found.values()
