"""How seconds and memory grow with the problem, beside the plain loop: one quantity at a time, the others held.

    python benchmarks/growth.py --device cpu --short --out benchmarks/results/growth_cpu.json
    python benchmarks/growth.py --device cuda --out benchmarks/results/growth_h200.json

An iteration of contrastive divergence is measured against images per class, classes, the side of images, k and chains;
a pass of expert training, whose images stay on the host (in a memory-mapped file) or lie on the device, and the reading
of a folder of images against n. Slopes are those of log seconds against log size over the upper half of the sizes: 1
is cost in proportion. The picture is written beside the record, and with --redraw from the record alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from pseudocoresets._io.files import write_json
from pseudocoresets._io.pictures import save_figure
from pseudocoresets.backends import choose_backend
from pseudocoresets.core.devices import PeakMemory, resolve_device, threads_for
from pseudocoresets.core.progress import Silent
from pseudocoresets.data import load_folder, resident
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.data.transforms import fit_normalisation
from pseudocoresets.models.networks import build_network
from pseudocoresets.sources.experts import train_experts
from pseudocoresets.workflows.bench import ReferenceLoop, construction_iteration, contrastive_divergence, synthetic_data
from pseudocoresets.workflows.provenance import provenance

POPULATION, BATCH = 4, 256
"""Experts that are trained where n grows, and the images of a step."""
WHO = {"points": ("ours", "streamed", "reference"), "files": ("ours",)}
"""Who is measured, where it is not ours and the plain loop."""
LONGEST = 5.0
"""Seconds of a call after which larger sizes of the same quantity are left out."""
ENOUGH = 1.0
"""Seconds in all after which a call is not repeated."""


@dataclass(frozen=True)
class Setting:
    """What is held while one of them grows."""

    ipc: int
    classes: int
    side: int
    k: int
    chains: int
    channels: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.side, self.side

    @property
    def images(self) -> int:
        return self.ipc * self.classes


@dataclass(frozen=True)
class Plan:
    """The setting, the sizes of each quantity, and how often each is measured."""

    held: Setting
    sizes: dict[str, tuple[int, ...]]
    points: tuple[int, ...]
    files: tuple[int, ...]
    repeats: int


FULL = Plan(
    Setting(ipc=10, classes=10, side=32, k=100, chains=1, channels=3, width=128),
    {
        "ipc": (1, 10, 50, 200, 500),
        "classes": (10, 50, 100, 200),
        "side": (8, 16, 32, 64),
        "k": (10, 30, 100, 300),
        "chains": (1, 2, 4, 8),
    },
    points=(1_000, 10_000, 100_000, 1_000_000),
    files=(300, 1_000, 3_000, 10_000),
    repeats=5,
)
SHORT = Plan(
    Setting(ipc=1, classes=10, side=8, k=5, chains=1, channels=1, width=32),
    {
        "ipc": (1, 5, 20, 100, 500),
        "classes": (10, 50, 200),
        "side": (8, 16, 32, 64),
        "k": (5, 10, 20, 40),
        "chains": (1, 2, 4, 8),
    },
    points=(300, 1_000, 3_000, 10_000),
    files=(100, 300, 1_000, 3_000),
    repeats=3,
)
TITLES = {
    "ipc": "images per class",
    "classes": "classes",
    "side": "side of images",
    "k": "k, steps of a chain",
    "chains": "chains",
    "points": "n, images of a pass over experts",
    "files": "n, files of a folder that is read",
}


@dataclass(frozen=True)
class Cost:
    quantity: str
    size: int
    who: str
    seconds: float
    peak_memory: int | None
    """Bytes; None in a record that has none."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="Small problems, for a laptop.")
    parser.add_argument("--only", nargs="*", default=list(TITLES), help="Only these quantities.")
    parser.add_argument("--seconds", type=float, default=math.inf, help="Begin no measurement after this time.")
    parser.add_argument("--redraw", action="store_true", help="Measure nothing; draw the record's picture again.")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.redraw:
        recorded = json.loads(arguments.out.read_text())["costs"]
        draw([Cost(**cost) for cost in recorded], arguments.out.with_suffix(".png"))
        return
    device, plan = resolve_device(arguments.device), SHORT if arguments.short else FULL
    costs: list[Cost] = []
    began = time.monotonic()
    for cost in measured(plan, arguments.only, device):
        costs.append(cost)
        memory = f"{mebibytes(cost):9,.0f} MiB"
        print(f"{cost.quantity} {cost.size:>9,} {cost.who:>9}: {1e3 * cost.seconds:10,.1f} ms {memory}", flush=True)
        document = {"held": asdict(plan.held), "slopes": slopes(costs), "costs": [asdict(each) for each in costs]}
        write_json(arguments.out, {**provenance(device=device), **document})
        if time.monotonic() - began > arguments.seconds:
            break
    draw(costs, arguments.out.with_suffix(".png"))


def measured(plan: Plan, quantities: Iterable[str], device: torch.device) -> Iterator[Cost]:
    """On a CPU each cost in a process of its own, whose memory is of nothing else."""
    with nullcontext(None) if device.type == "cuda" else fresh_processes() as processes:
        for quantity in quantities:
            yield from costs_of(plan, quantity, device, processes)


def fresh_processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)


def costs_of(plan: Plan, quantity: str, device: torch.device, processes: ProcessPoolExecutor | None) -> Iterator[Cost]:
    """Of everybody, until one of the sizes takes too long."""
    tiring: set[str] = set()
    for size in {**plan.sizes, "points": plan.points, "files": plan.files}[quantity]:
        for who in WHO.get(quantity, ("ours", "reference")):
            if who in tiring:
                continue
            work = partial(cost_of_size, plan, quantity, size, who, device)
            cost = Cost(quantity, size, who, *(work() if processes is None else processes.submit(work).result()))
            if cost.seconds > LONGEST:
                tiring.add(who)
            yield cost


def cost_of_size(plan: Plan, quantity: str, size: int, who: str, device: torch.device) -> tuple[float, int]:
    setting = plan.held
    if quantity == "files":
        return reading(setting, size)
    if quantity == "points":
        make, repeats = partial(expert_pass, size=size, who=who), 1
    else:
        setting = replace(setting, **{quantity: size})
        make, repeats = our_iteration if who == "ours" else chains_in_turn, plan.repeats
    share = 0.0 if who == "streamed" else resident.SHARE_OF_MEMORY
    with threads_for(setting.shape), patch.object(resident, "SHARE_OF_MEMORY", share):
        return cost_of(make(setting, device), repeats, device)


def our_iteration(setting: Setting, device: torch.device) -> Callable[[], object]:
    """With a backend of its own, which keeps nothing that was captured for another size."""
    network = build_network(f"convnet:width={setting.width}", setting.shape, setting.classes)
    data = synthetic_data(setting.shape, 2 * setting.images, setting.classes, setting.classes)
    method = contrastive_divergence(setting.chains, setting.k)
    return construction_iteration(data, network, method, setting.ipc, device, choose_backend(device))


def chains_in_turn(setting: Setting, device: torch.device) -> Callable[[], object]:
    network = build_network(f"convnet:width={setting.width}", setting.shape, setting.classes)
    reference = ReferenceLoop(network, setting.images, setting.k, device)

    def iteration() -> None:
        for _ in range(setting.chains):
            reference()

    return iteration


def expert_pass(setting: Setting, device: torch.device, size: int, who: str) -> Callable[[], object]:
    """One epoch of a population; the plain loop sees as many batches, of images that lie on the device."""
    network = build_network(f"convnet:width={setting.width}", setting.shape, setting.classes)
    if who == "reference":
        steps = POPULATION * math.ceil(size / BATCH)
        return ReferenceLoop(network, BATCH, steps, device)
    data = mapped_data(setting, size)
    data.fingerprint  # noqa: B018  (read once, whoever trains)
    own = {"batch_size": BATCH, "device": device, "backend": choose_backend(device), "progress": Silent()}
    return partial(train_experts, data, network, POPULATION, 1, **own)


@lru_cache(maxsize=1)
def mapped_data(setting: Setting, count: int) -> Dataset:
    """Random images in a file that is mapped into memory, made a part at a time; one for all that read it in turn."""
    images = resident.mapped_bytes((count, *setting.shape))
    generator = torch.Generator().manual_seed(0)
    for part in images.split(10_000):
        part.copy_(torch.randint(0, 256, part.shape, generator=generator, dtype=torch.uint8))
    train, few = Split(images, torch.arange(count) % setting.classes), slice(0, setting.classes)
    test = Split(images[few], train.labels[few])
    names = tuple(str(label) for label in range(setting.classes))
    return Dataset("growth", train, test, names, fit_normalisation(images[:10_000]))


def reading(setting: Setting, size: int) -> tuple[float, int]:
    """Of files of images, decoded one by one into one array of bytes."""
    from PIL import Image

    side, stream = setting.side, np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        for number in range(size):
            folder = Path(name) / str(number % 10)
            folder.mkdir(exist_ok=True)
            Image.fromarray(stream.integers(0, 256, (side, side), np.uint8)).save(folder / f"{number}.png")
        return cost_of(lambda: load_folder(name), 1, torch.device("cpu"))


def cost_of(call: Callable[[], object], repeats: int, device: torch.device) -> tuple[float, int]:
    """The least seconds of a call after one to warm up, and the most memory that it took.

    On a CPU these are of processor time, since other work may share it.
    """
    gc.collect()  # what was captured for the size before
    clock, times = time.perf_counter if device.type == "cuda" else time.process_time, []
    with PeakMemory(device) as memory:
        for _ in range(repeats + 1):
            began = clock()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(clock() - began)
            if len(times) > 1 and sum(times[1:]) > ENOUGH:
                break
    return min(times[1:] or times), memory.bytes


def mebibytes(cost: Cost) -> float:
    return math.nan if cost.peak_memory is None else cost.peak_memory / 2**20


def slopes(costs: list[Cost]) -> dict[str, dict[str, float]]:
    """d log seconds / d log size over the upper half of the sizes, by least squares."""
    found: dict[str, dict[str, float]] = {}
    for quantity in dict.fromkeys(cost.quantity for cost in costs):
        for who in dict.fromkeys(cost.who for cost in costs if cost.quantity == quantity):
            own = [cost for cost in costs if (cost.quantity, cost.who) == (quantity, who)]
            upper = own[len(own) // 2 - (len(own) % 2 == 0) :] if len(own) > 2 else own
            if len(upper) > 1:
                x, y = zip(*((math.log(cost.size), math.log(cost.seconds)) for cost in upper), strict=True)
                found.setdefault(quantity, {})[who] = round(statistics.linear_regression(x, y).slope, 2)
    return found


def draw(costs: list[Cost], path: Path) -> None:
    """Seconds above, memory below, a column for each quantity."""
    from matplotlib.figure import Figure

    quantities = list(dict.fromkeys(cost.quantity for cost in costs))
    figure = Figure(figsize=(3.2 * len(quantities), 6), layout="constrained")
    grid = figure.subplots(2, len(quantities), squeeze=False)
    looks = {"ours": "o-", "reference": "s--", "streamed": "^:"}
    values: tuple[tuple[str, Callable[[Cost], float]], ...] = (
        ("seconds (of processor on a CPU)", lambda cost: cost.seconds),
        ("peak memory, MiB", mebibytes),
    )
    for column, quantity in enumerate(quantities):
        for row, (name, value) in enumerate(values):
            axes: Any = grid[row][column]
            for who, look in looks.items():
                own = [cost for cost in costs if (cost.quantity, cost.who) == (quantity, who)]
                if own:
                    axes.plot([cost.size for cost in own], [value(cost) for cost in own], look, label=who)
            axes.set(xscale="log", xlabel=TITLES[quantity], ylabel=name if column == 0 else "")
            if row == 0:
                axes.set_yscale("log")
            else:
                known = [value(cost) for cost in costs if cost.quantity == quantity and cost.peak_memory]
                axes.set_visible(bool(known))
                axes.set_ylim(0, 1.15 * max(known, default=1.0))
            sizes = sorted({cost.size for cost in costs if cost.quantity == quantity})
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
            axes.minorticks_off()
    grid[0][0].legend()
    save_figure(path, figure)


if __name__ == "__main__":
    main()
