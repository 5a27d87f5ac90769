"""Memory and seconds per iteration of every construction method, each measured in a process of its own.

A cell is a method at so many images per class, in the library's formulation or, for some methods, in that of the
published scripts as a plain PyTorch loop (see ``published_loops``). On a GPU the problem has CIFAR-10's shapes and the
settings of the preset ``paper``; on a CPU the digits' and ``quick``. Images and experts are random: speed and memory do
not depend on what they show. Beside it stand the paper's figures, of its own device.

An iteration is one update of the images. The paper's gradient matching counts networks instead, each of which serves
several updates; ``paper_updates`` says how many. Feature alignment trains its network until accuracies say that
it is enough; here it is the least, ten epochs, in both formulations.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from pseudocoresets import presets
from pseudocoresets.backends import choose_backend
from pseudocoresets.construction.learner import Learner
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import ImageTask, real_coreset
from pseudocoresets.core.devices import PeakMemory, resolve_device, threads_for
from pseudocoresets.core.errors import InputError
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.evaluation.paper import paper_cost
from pseudocoresets.methods import (
    METHODS,
    FeatureAlignment,
    GradientMatching,
    GradientMethod,
    build_gradient_method,
    build_method,
)
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts import Experts, ExpertSettings
from pseudocoresets.workflows.bench import CPU, GPU, NOTHING, Scale, iterating, seconds_of, synthetic_data
from pseudocoresets.workflows.cells import reason
from pseudocoresets.workflows.published_loops import PUBLISHED_LOOPS, REAL_BATCH, WATCHED

ALL = "all"
PAPERS_DATA = "cifar10"
LEARNING_RATE = 1e-3
"""Small, so that random images stay finite."""
EXPERTS = 3
GROUP_SECONDS, MEASURED_SECONDS, MOST_GROUPS = 0.2, 3.0, 5
"""Updates are timed in groups of about the first; groups are repeated for about the second, up to so many times."""
NEVER = 10**9
ALIKE = {"batch_size": REAL_BATCH}
PREPARED: Mapping[str, Mapping[str, float]] = {
    "dm": ALIKE,
    "gm": ALIKE,
    "dsa": ALIKE,
    "cafe": {**ALIKE, "settled": 0.0, "moved": 0.0},
    "cafe-dsa": {**ALIKE, "settled": 0.0, "moved": 0.0},
}
"""Options that make iterations the same work, here and in the published loop."""


class MethodCell(NamedTuple):
    """What is measured in one process."""

    method: str
    ipc: int
    published: bool
    """Whether as the published loop."""
    device: str
    precision: str
    scale: Scale


@dataclass(frozen=True)
class Cost:
    """What one update of the images costs."""

    seconds: float
    peak_memory: int


@dataclass(frozen=True)
class MethodCost:
    """One row: the library's cost, that of the published loop where there is one, and the paper's figures."""

    method: str
    ipc: int
    ours: Cost | None = None
    published: Cost | None = None
    paper_seconds: float | None = None
    """Per iteration as the paper counts them."""
    paper_updates: int = 1
    """Updates of the images in one of the paper's iterations."""
    paper_memory_gb: float | None = None
    labels_learned: bool = False
    failure: str | None = None

    @property
    def times_faster(self) -> float | None:
        """Than the published loop."""
        if self.ours is None or self.published is None:
            return None
        return self.published.seconds / self.ours.seconds

    @property
    def paper(self) -> Cost | None:
        """The paper's cost of one update."""
        if self.paper_seconds is None or self.paper_memory_gb is None:
            return None
        return Cost(self.paper_seconds / self.paper_updates, round(1e9 * self.paper_memory_gb))

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"times_faster": self.times_faster}


def method_names(names: Sequence[str]) -> list[str]:
    """The methods that are named, or all that learn images; others have no iterations to measure."""
    if list(names) == [ALL]:
        return [name for name in METHODS if isinstance(build_method(name), GradientMethod)]
    for name in names:
        if name in SELECTIONS:
            raise InputError(f"'{name}' selects real images and has no iterations to measure.")
        build_gradient_method(name)
    return list(names)


MOST_IMAGES = 1_000_000
"""Per class."""


def bench_methods(
    names: Sequence[str],
    sizes: Sequence[int],
    device: str | torch.device = "auto",
    precision: str = "auto",
    scale: Scale | None = None,
    alone: bool = False,
) -> Iterator[MethodCost]:
    """Every method at every size, one after another; one that fails is a row that says why.

    ``alone`` leaves the published loops out.
    """
    where = resolve_device(device)
    scale = scale or (GPU if where.type == "cuda" else CPU)
    if not names or not sizes or not all(1 <= size <= MOST_IMAGES for size in sizes):
        raise InputError(f"Name at least one method, and numbers of images per class from 1 to {MOST_IMAGES:,}.")
    places = [(name, ipc) for name in method_names(names) for ipc in sizes]
    with _CleanProcesses(ahead=1 if where.type == "cuda" else 0) as processes:
        for name, ipc in places:
            both = name in PUBLISHED_LOOPS and not alone
            cells = [MethodCell(name, ipc, each, str(where), precision, scale) for each in (False, True)[: 1 + both]]
            yield _row(name, ipc, cells, processes)


def _row(name: str, ipc: int, cells: Sequence[MethodCell], processes: _CleanProcesses) -> MethodCost:
    costs: dict[bool, Cost | None] = {False: None, True: None}
    failures = []
    for cell in cells:
        try:
            costs[cell.published] = processes.call(measured, cell)
        except Exception as error:
            failures.append(f"{'published loop: ' if cell.published else ''}{reason(error)}")
    seconds, memory = paper_cost(PAPERS_DATA, ipc, name)
    as_in_paper = build_gradient_method(name, presets.preset("paper", PAPERS_DATA, ipc).method_options(name))
    updates, learned = updates_per_network(as_in_paper), as_in_paper.learns_labels
    failure = " ".join(failures) or None
    return MethodCost(name, ipc, costs[False], costs[True], seconds, updates, memory, learned, failure)


class _CleanProcesses:
    """A process of its own for each call; so many are started ahead, which import while another one measures."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._waiting: list[ProcessPoolExecutor] = []

    def __enter__(self) -> _CleanProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._waiting:
            pool.shutdown()

    def call(self, function: Callable[[MethodCell], Cost], cell: MethodCell) -> Cost:
        while len(self._waiting) <= self._ahead:
            self._waiting.append(_importing())
        with self._waiting.pop(0) as pool:
            try:
                return pool.submit(function, cell).result()
            except KeyboardInterrupt:
                for child in multiprocessing.active_children():  # or the pool would wait for what it measures
                    child.kill()
                raise


def _importing() -> ProcessPoolExecutor:
    """A process that has begun to import this module."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    pool.submit(_imported)
    return pool


def _imported() -> None:
    """A process that can call this has the module."""


def measured(cell: MethodCell) -> Cost:
    """The cost of a cell, in this process."""
    device = torch.device(cell.device)
    with threads_for(cell.scale.shape):
        method = _method(cell.method, cell.ipc, cell.device)
        step = _published_step(cell, method, device) if cell.published else _own_step(cell, method, device)
        return _cost(step, updates_per_network(method), device)


def _method(name: str, ipc: int, device: str) -> GradientMethod:
    return build_gradient_method(name, {**_preset(ipc, device).method_options(name), **PREPARED.get(name, {})})


def _preset(ipc: int, device: str) -> presets.Preset:
    on_gpu = torch.device(device).type == "cuda"
    return presets.preset("paper", PAPERS_DATA, ipc) if on_gpu else presets.preset("quick", "digits", ipc)


def updates_per_network(method: GradientMethod) -> int:
    """After so many updates the work repeats itself."""
    return method.matches if isinstance(method, GradientMatching) else 1


def _own_step(cell: MethodCell, method: GradientMethod, device: torch.device) -> Callable[[], None]:
    own = _preset(cell.ipc, cell.device).construction_for(cell.method)
    chosen = {**own, "ipc": cell.ipc, "learning_rate": LEARNING_RATE, "initialisation": "random"}
    settings = ConstructionSettings(**chosen)
    scale = cell.scale
    data = synthetic_data(scale.shape, scale.train_images, scale.test_images)
    network = build_network(scale.network, scale.shape, 10)
    task = ImageTask(data, network, _experts(network, method) if method.needs_source else None)
    start = real_coreset(data, settings, network.spec, cell.method)
    learner = Learner(task.parameterisation(start, method, settings), method, settings, device)
    problem = task.problem(settings, device, choose_backend(device, cell.precision))
    return iterating(learner, method, problem, device)


def _experts(network: Network, method: GradientMethod) -> Experts:
    epochs = int(method.options().get("expert_epochs", 1)) + 1
    trajectories = [network.initialise(number, epochs + 1) for number in range(EXPERTS)]
    return Experts(network, NOTHING, ExpertSettings(epochs=epochs), trajectories)


def _published_step(cell: MethodCell, method: GradientMethod, device: torch.device) -> Callable[[], None]:
    scale = cell.scale
    data = synthetic_data(scale.shape, scale.train_images, scale.test_images)
    network = build_network(scale.network, scale.shape, 10)
    images, labels = data.transform(data.train.images).to(device), data.train.labels.to(device)
    plain = isinstance(method, GradientMatching | FeatureAlignment) and not method.augments
    augmentation = None if plain else dsa(data.flippable)
    return PUBLISHED_LOOPS[cell.method](network, images, labels, cell.ipc, augmentation, **_training(method))


def _training(method: GradientMethod) -> dict[str, int]:
    """How the published loop trains its network between updates, and after how many it draws another."""
    if isinstance(method, GradientMatching):
        return {"matches": method.matches, "epochs": method.epochs}
    return {"matches": NEVER, "epochs": WATCHED} if isinstance(method, FeatureAlignment) else {}


def _cost(step: Callable[[], None], cycle: int, device: torch.device) -> Cost:
    """Median seconds of an update over groups of whole cycles, after one of warm-up; one is enough where it is long."""
    with PeakMemory(device) as memory:
        seconds_of(step, device, cycle, warm_ups=0)
        once = cycle * seconds_of(step, device, cycle, warm_ups=0)
        cycles = max(1, math.ceil(GROUP_SECONDS / once))
        groups = max(1, min(MOST_GROUPS, int(MEASURED_SECONDS / (cycles * once))))
        again = range(0 if once > MEASURED_SECONDS else groups)
        times = [seconds_of(step, device, cycles * cycle, warm_ups=0) for _ in again] or [once / cycle]
    return Cost(statistics.median(times), memory.bytes)
