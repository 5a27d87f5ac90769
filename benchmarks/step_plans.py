"""What a step of a chain costs on a GPU under each plan of its kernels, and whether each gives the same parameters.

    python benchmarks/step_plans.py --out step_plans.json

For CIFAR-10's shapes and the ConvNet D3W128: one chain of ten images, eight chains of ten, and one of a hundred. Every
variant is first tried in a process of its own, where its kernels are compiled. Microseconds per step are the median of
several rounds, in which all variants take turns, of the median of several replays of a graph of 20 steps, and in
brackets the least and the greatest of the rounds.

``error`` is how far the parameters are from the default's after those steps without noise, relative to how far these
moved. Each of the six activations and gradients of them that are stored in bfloat16 may be another rounding, 2^-8 in
relative terms, so that sqrt(6) 2^-8 is allowed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import torch

from pseudocoresets.backends.fused import small_blocks
from pseudocoresets.backends.fused.capture import cudnn_benchmark, without_collection
from pseudocoresets.backends.fused.chains import CapturedChains
from pseudocoresets.backends.fused.convnet import Plan
from pseudocoresets.backends.fused.layout import Layout, layout_of
from pseudocoresets.backends.fused.small_blocks import Tile, WeightTile
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import Rates
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.workflows.provenance import provenance

Job: TypeAlias = tuple[str, tuple[int, int]]

SHAPE = (3, 32, 32)
SIZES = ((1, 10), (8, 10), (1, 100))
"""Chains and images."""
STEPS = 20
REPLAYS, ROUNDS = 15, 4
TOLERANCE = math.sqrt(6) * 2**-8
GREATEST_PRIORITY = -1
SECONDS_TO_TRY, SECONDS_TO_TRY_AGAIN = 42, 10
NOISY, STILL = Rates(1e-4, noise=1.0), Rates(1e-3, momentum=0.5)


@dataclass(frozen=True)
class Variant:
    """A plan, whether its main line goes before what is beside it, and other tiles."""

    plan: Plan = field(default_factory=Plan)
    first: bool = False
    patches: tuple[tuple[str, Any], ...] = ()
    sizes: tuple[tuple[int, int], ...] = SIZES

    @contextmanager
    def patched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, value in self.patches:
                value = Always(value) if isinstance(value, Tile) else value
                stack.enter_context(mock.patch.object(small_blocks, name, value))
            yield


@dataclass(frozen=True)
class Always:
    """A choice of tiles that does not depend on anything."""

    tile: Tile

    def __call__(self, *_: int) -> Tile:
        return self.tile


EVERYWHERE = ("MOST_VALUES", 10_240)
FEW, EIGHT = ((1, 10),), ((8, 10),)
LATE: dict[str, Any] = {"weights": "late", "streams": 3}
BOTH: dict[str, Any] = {"returning": True, "joined": True}
EACH: dict[str, Any] = {"returning": True, "stepping": True, "forgets": True}


def weights_by(rows: int, columns: int, splits: int, warps: int, stages: int) -> tuple[tuple[str, Any], ...]:
    return (("WEIGHT_TILE", WeightTile(rows, columns, 64, splits, warps, stages)),)


def small_by(up: Tile, down: Tile) -> tuple[tuple[str, Any], ...]:
    return EVERYWHERE, ("_up_tile", up), ("_down_tile", down)


WARPS, WIDE = weights_by(64, 64, 1, 8, 3), weights_by(128, 128, 1, 16, 3)
"""Of which three and one program fit on a multiprocessor where they also take the step."""
VARIANTS = {
    "default": Variant(),
    "default again": Variant(),
    # when gradients of weights run
    "priority": Variant(first=True),
    "late": Variant(Plan("late")),
    "late, 3 streams": Variant(Plan(**LATE)),
    "late, 3 streams, priority": Variant(Plan(**LATE), first=True),
    "at once, 3 streams, priority": Variant(Plan(streams=3), first=True),
    "in line": Variant(Plan("in line")),
    # tiles
    "weights of 4 stages": Variant(patches=weights_by(64, 64, 256, 4, 4), sizes=(*FEW, *EIGHT)),
    "weights by half as many programs": Variant(patches=weights_by(64, 64, 128, 4, 3), sizes=FEW),
    "weights of 8 warps": Variant(patches=weights_by(64, 64, 256, 8, 3), sizes=(*FEW, *EIGHT)),
    "weights of 128 x 64": Variant(patches=weights_by(128, 64, 1, 8, 3), sizes=EIGHT),
    "weights of 128 x 128": Variant(patches=weights_by(128, 128, 256, 8, 3), sizes=EIGHT),
    "weights of 128 x 128, whole": Variant(patches=weights_by(128, 128, 1, 8, 3), sizes=EIGHT),
    "down by 32": Variant(patches=(("_down_tile", Tile(32, 128, 4, 3)),), sizes=FEW),
    "down by 64 terms": Variant(patches=(("_down_tile", Tile(16, 64, 4, 4)),), sizes=FEW),
    "small blocks of 32": Variant(patches=small_by(Tile(32, 64, 4, 2), Tile(32, 128, 8, 3)), sizes=EIGHT),
    "small blocks of 64": Variant(patches=small_by(Tile(64, 64, 8, 2), Tile(64, 64, 8, 3)), sizes=EIGHT),
    "small blocks of 64, read through L1": Variant(
        patches=small_by(Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)), sizes=EIGHT
    ),
    # other kernels
    "returning": Variant(Plan(returning=True)),
    "joined": Variant(Plan(joined=True), sizes=FEW),
    "forgets": Variant(Plan(forgets=True)),
    "stepping": Variant(Plan(stepping=True), sizes=EIGHT),
    "stepping of 8 warps": Variant(Plan(stepping=True), patches=WARPS, sizes=EIGHT),
    "stepping of 128 x 128": Variant(Plan(stepping=True), patches=WIDE, sizes=EIGHT),
    # together
    "returning, joined, in line": Variant(Plan("in line", **BOTH), sizes=FEW),
    "returning, joined, at once, priority": Variant(Plan(**BOTH), first=True, sizes=FEW),
    "returning, joined, late, 3 streams, priority": Variant(Plan(**LATE, **BOTH), first=True, sizes=FEW),
    "each, 64 x 64, at once": Variant(Plan(**EACH), patches=WARPS, sizes=EIGHT),
    "each, at once": Variant(Plan(**EACH), patches=WIDE, sizes=EIGHT),
    "each, at once, priority": Variant(Plan(**EACH), True, WIDE, EIGHT),
    "each, late, 3 streams, priority": Variant(Plan(**LATE, **EACH), True, WIDE, EIGHT),
    "each, in line": Variant(Plan("in line", **EACH), patches=WIDE, sizes=EIGHT),
    # kernels launched early
    "early, at once": Variant(Plan(early=True)),
    "early, in line": Variant(Plan("in line", early=True)),
    "early, late, 3 streams, priority": Variant(Plan(early=True, **LATE), first=True),
    "early, returning, joined, at once, priority": Variant(Plan(early=True, **BOTH), first=True, sizes=FEW),
    "early, returning, joined, in line": Variant(Plan("in line", early=True, **BOTH), sizes=FEW),
    "early, returning, joined, late, 3 streams, priority": Variant(
        Plan(early=True, **LATE, **BOTH), first=True, sizes=FEW
    ),
    "early, each, at once, priority": Variant(Plan(early=True, **EACH), True, WIDE, EIGHT),
    "early, each, in line": Variant(Plan("in line", early=True, **EACH), patches=WIDE, sizes=EIGHT),
}


@lru_cache
def network_and_layout() -> tuple[Network, Layout]:
    network = build_network("convnet:depth=3,width=128", SHAPE, 10)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    return network, layout


class Run:
    """A variant's graph of ``STEPS`` steps."""

    def __init__(self, variant: Variant, chains: int, images: int) -> None:
        device = torch.device("cuda")
        network, layout = network_and_layout()
        with variant.patched(), mock.patch.object(CapturedChains, "_capture", capturing(variant)):
            self._runner = CapturedChains(
                layout.to(device), SHAPE, chains, images, STEPS, False, True, device, plan=variant.plan
            )
        self._start = network.initialise(0, chains).to(device)
        generator = torch.Generator("cuda").manual_seed(0)
        x = torch.randn(1, STEPS, images, *SHAPE, device=device, generator=generator)
        self._runner._fill(x, None, Randomness.for_purpose(0))
        self._runner.set_labels(
            torch.arange(images, device=device) % 10, torch.full((images,), 1 / images, device=device)
        )

    def parameters(self) -> torch.Tensor:
        """How far the chains move without noise."""
        self._runner.set_position(self._start)
        self._runner.set_rates(STILL, 0.0)
        self._runner._graph.replay()
        return self._runner.position() - self._start

    def microseconds(self) -> float:
        self._runner.set_position(self._start)
        self._runner.set_rates(NOISY, 0.0)
        found = []
        for _ in range(REPLAYS):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            self._runner._graph.replay()
            events[1].record()
            torch.cuda.synchronize()
            found.append(1e3 * events[0].elapsed_time(events[1]))
        return statistics.median(found) / STEPS


def capturing(variant: Variant) -> Callable[[CapturedChains], torch.cuda.CUDAGraph]:
    """In place of a capture that knows no priority."""

    def capture(runner: CapturedChains) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream(priority=GREATEST_PRIORITY if variant.first else 0)
        with torch.no_grad(), cudnn_benchmark(), without_collection():
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                runner._steps_of(0, STEPS)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                runner._all_steps()
        return graph

    return capture


def trial(name: str, size: tuple[int, int]) -> str:
    """What goes wrong with a variant, if anything does."""
    try:
        run = Run(VARIANTS[name], *size)
        return "" if bool(run.parameters().isfinite().all()) else "not finite"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()[:200]}"


def tried(jobs: list[Job], processes: int, seconds: float, lives: int | None = None) -> dict[Job, str]:
    """What goes wrong with each job; nothing, for those that can be measured."""
    context = torch.multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,), max_tasks_per_child=lives)
    futures = {job: pool.submit(trial, *job) for job in jobs}
    end, found = time.monotonic() + seconds, {}
    for job, future in futures.items():
        try:
            found[job] = future.result(max(0.1, end - time.monotonic()))
        except (TookTooLong, OSError, RuntimeError) as error:  # a hang, or a process that died
            found[job] = f"{type(error).__name__} {error}"
    pool.shutdown(wait=False, cancel_futures=True)
    for process in multiprocessing.active_children():  # one that hangs would share the device with what is measured
        process.kill()
    return found


def measured(names: list[str], size: tuple[int, int], end: float) -> Iterator[dict[str, Any]]:
    """Rows of these variants, of which the first is the one that they are compared with; those begun by ``end``."""
    runs = {}
    for name in names:
        if time.monotonic() > end:
            print(size, name, "was not measured for want of time", flush=True)
            continue
        try:
            runs[name] = Run(VARIANTS[name], *size)
        except Exception as error:
            print(size, name, f"{type(error).__name__}: {str(error)[:200]}", flush=True)
    wanted = runs[names[0]].parameters()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            times[name].append(run.microseconds())
    for name, run in runs.items():
        away = float((run.parameters() - wanted).norm() / wanted.norm())
        yield {
            "chains": size[0],
            "images": size[1],
            "variant": name,
            "us": round(statistics.median(times[name]), 1),
            "least": round(min(times[name]), 1),
            "greatest": round(max(times[name]), 1),
            "error": away,
            "agrees": away <= TOLERANCE,
        }


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each variant, with microseconds at each size."""
    lines = [f"{'variant':<54}" + "".join(f"{f'{chains} x {images}':>24}" for chains, images in SIZES)]
    for name in VARIANTS:
        line = f"{name:<54}"
        for chains, images in SIZES:
            found = [r for r in rows if (r["chains"], r["images"], r["variant"]) == (chains, images, name)]
            text = "".join(f"{r['us']} ({r['least']}-{r['greatest']}){'' if r['agrees'] else ' WRONG'}" for r in found)
            line += f"{text:>24}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=76.0, help="after which nothing more is begun")
    parser.add_argument("--processes", type=int, default=15, help="that try the variants before they are measured")
    options = parser.parse_args()
    start = time.monotonic()
    jobs: list[Job] = [(name, size) for name, variant in VARIANTS.items() for size in variant.sizes]
    found = tried(jobs, options.processes, SECONDS_TO_TRY)
    failed = [job for job in jobs if found[job]]
    if failed:  # one error of a device's is all that its process sees from then on
        found |= tried(failed, options.processes, SECONDS_TO_TRY_AGAIN, lives=1)
    problems = {str(job): problem for job, problem in found.items() if problem}
    print(*problems.items(), f"tried after {time.monotonic() - start:.0f} s", sep="\n", flush=True)
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        names = [name for name, of in jobs if of == size and not found[name, of]]
        try:
            rows.extend(measured(names, size, start + options.seconds))
        except Exception as error:  # what was measured before is kept
            problems[str(size)] = f"{type(error).__name__}: {str(error)[:200]}"
            print(size, problems[str(size)], flush=True)
        record = {**provenance(), "tolerance": TOLERANCE, "problems": problems, "rows": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        print(size, f"after {time.monotonic() - start:.0f} s", flush=True)
    print(f"{table(rows)}\nall after {time.monotonic() - start:.0f} s", flush=True)
    sys.stdout.flush()
    os._exit(0)  # a pool whose processes were killed is not waited for


if __name__ == "__main__":
    main()
