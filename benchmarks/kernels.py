"""What a step costs on a GPU, and which tiles its kernels should have.

    python benchmarks/kernels.py steps --out steps.json
    python benchmarks/kernels.py steps --cudnn --out cudnn.json
    python benchmarks/kernels.py tiles --block first --out tiles.json

``steps`` measures captured steps of chains and of unrolled trajectories, for CIFAR-10's shapes and the ConvNet D3W128;
with ``--cudnn`` all convolutions are cuDNN's, those of few images too. ``tiles`` measures each kernel of the
blocks under every tile it could have. Microseconds, the median of several replays of a
graph. Both print a table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from pseudocoresets.backends.fused import blocks, first_block, small_blocks
from pseudocoresets.backends.fused.chains import CapturedChains
from pseudocoresets.backends.fused.layout import Layout, layout_of
from pseudocoresets.backends.fused.trajectory import CapturedTrajectory
from pseudocoresets.core.state import AdjointState, Motion
from pseudocoresets.models.networks import build_network
from pseudocoresets.workflows.provenance import provenance

SHAPE = (3, 32, 32)
CUDA = torch.device("cuda")
STEPS = 20
SHARED = ((1, 10), (4, 10), (8, 10), (1, 20), (1, 50), (1, 100), (1, 500), (5, 100))
"""Chains and images of a coreset's chains."""
OWN = ((4, 256),)
"""Chains and images of experts, each with its own."""
UNROLLED = ((1, 10), (4, 10), (1, 100), (4, 100))
REPEATS = 20
IMAGES = (10, 100, 500)
CHANNELS = (128, 1024)


def microseconds(work: Callable[[], object], times: int = 1) -> float:
    """The median over replays of what ``work``, so many times in a row, takes on the device."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    found = []
    for _ in range(REPEATS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        graph.replay()
        events[1].record()
        torch.cuda.synchronize()
        found.append(1e3 * events[0].elapsed_time(events[1]))
    return statistics.median(found) / times


def printed(row: dict[str, Any]) -> dict[str, Any]:
    print(row, flush=True)
    return row


def step_times() -> Iterator[dict[str, Any]]:
    """Microseconds per step."""
    network = build_network("convnet:depth=3,width=128", SHAPE, 10)
    layout = layout_of(network)
    assert isinstance(layout, Layout)
    layout = layout.to(CUDA)
    for shared, sizes in ((True, SHARED), (False, OWN)):
        for chains, images in sizes:
            runner = CapturedChains(layout, SHAPE, chains, images, STEPS, False, shared, CUDA)
            runner.set_position(network.initialise(0, chains).to(CUDA))
            row = {"what": "chains" if shared else "experts", "chains": chains, "images": images}
            yield printed({**row, "us": round(microseconds(runner._all_steps) / STEPS, 1)})
    for chains, images in UNROLLED:
        trajectory = CapturedTrajectory(layout, SHAPE, chains, images, STEPS, False, CUDA)
        start = network.initialise(0, chains).to(CUDA)
        x = torch.randn(STEPS, images, *SHAPE, device=CUDA)
        y, factors = torch.arange(images, device=CUDA) % 10, torch.full((images,), 1 / images, device=CUDA)
        trajectory.set_rates(torch.tensor(0.05), 0.0)
        trajectory.forwards(Motion(start, torch.zeros_like(start)), x, y, factors)
        trajectory.backwards(AdjointState(start, start), torch.full((chains,), 1e-2, device=CUDA))
        for what, work in (("unroll", trajectory._all_steps), ("adjoint", trajectory._all_adjoint_steps)):
            row = {"what": what, "chains": chains, "images": images}
            yield printed({**row, "us": round(microseconds(work) / STEPS, 1)})


def norm_work(images: int, channels: int, pooled_side: int, block: int, warps: int) -> dict[str, Callable[[], object]]:
    """Forward and backward kernels of an inner block with a given tile."""
    shape = (images, channels, 2 * pooled_side, 2 * pooled_side)
    z, dz = (torch.randn(shape, device=CUDA).bfloat16().to(memory_format=torch.channels_last) for _ in range(2))
    pooled = torch.nn.functional.avg_pool2d(z, 2).contiguous(memory_format=torch.channels_last)
    gamma, beta, dgamma, dbeta = (torch.ones(channels, device=CUDA) for _ in range(4))
    kept = torch.ones(2, images, channels, device=CUDA)

    def tiled(work: Callable[..., None], *tensors: torch.Tensor) -> Callable[[], object]:
        def run() -> None:
            with (
                mock.patch.object(blocks, "_channel_block", lambda *_: block),
                mock.patch.object(blocks, "_warps", lambda *_: warps),
            ):
                work(*tensors)

        return run

    return {
        "norm": tiled(blocks.norm_relu_pool, z, gamma, beta, pooled, kept),
        "norm backward": tiled(blocks.norm_relu_pool_backward, z, gamma, beta, kept, pooled, dz, dgamma, dbeta),
    }


def first_work(
    images: int, channels: int, of_images: bool, rows: int, block: int, warps: int
) -> dict[str, Callable[[], object]]:
    """Kernels of the first block with a given tile: both ways, or only what the gradient in the images adds."""
    layout = layout_of(build_network(f"convnet:depth=3,width={channels}", SHAPE, 10))
    assert isinstance(layout, Layout)
    x = torch.randn(images, *SHAPE, device=CUDA)
    patches = first_block.patches_of(x, layout, torch.bfloat16)
    pooled = torch.randn(images, channels, 16, 16, device=CUDA).bfloat16().to(memory_format=torch.channels_last)
    weight = torch.randn(channels * 27, device=CUDA).bfloat16()
    dweight, dx = torch.zeros(channels * 27, device=CUDA), torch.zeros_like(x)
    gamma, beta, dgamma, dbeta = (torch.ones(channels, device=CUDA) for _ in range(4))
    kept = torch.ones(2, images, channels, device=CUDA)
    tile = first_block.Tile(rows, block, warps)

    def forward() -> None:
        with mock.patch.object(first_block, "_tile", lambda *_: tile):
            first_block.first_block(patches, weight, gamma, beta, pooled, kept)

    def backward() -> None:
        place = "_gradient_tile" if of_images else "_tile"
        with mock.patch.object(first_block, place, lambda *_: tile):
            first_block.first_block_backward(
                patches, weight, gamma, beta, kept, pooled, dweight, dgamma, dbeta, dx if of_images else None
            )

    if of_images:
        return {"first backward, images too": backward}
    return {"first": forward, "first backward": backward, "unfold": lambda: patches.fill(x)}


def all_tiles() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for channels, pooled_side, block, warps in itertools.product(CHANNELS, (8, 4), (16, 32, 64), (1, 2, 4, 8)):
        yield "norm", (channels, pooled_side, block, warps)
    tiles = itertools.product((32, 64, 128), (16, 32, 64, 128), (4, 8))
    for channels, (rows, block, warps) in itertools.product(CHANNELS, tiles):
        if rows * block <= 8192:
            yield "first", (channels, False, rows, block, warps)
            if block >= 32:
                yield "first", (channels, True, rows, block, warps)


def tile_times(kind: str, tile: tuple[Any, ...], sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Microseconds of both ways at each number of images."""
    rows = []
    makes = {"norm": norm_work, "first": first_work}[kind]
    for images in sizes:
        for name, work in makes(images, *tile).items():
            rows.append({"kernel": name, "images": images, "tile": tile, "us": round(microseconds(work, 10), 1)})
    return rows


def compiled(job: tuple[str, tuple[Any, ...]]) -> str:
    try:
        tile_times(*job, sizes=(2,))
    except Exception as error:
        return f"{job}: {type(error).__name__} {str(error)[:100]}"
    return ""


def all_tile_times(block: str | None, processes: int) -> list[dict[str, Any]]:
    """Those of every tile that compiles, and for each case a line with the four best."""
    jobs = [job for job in all_tiles() if block in (None, job[0])]
    with ProcessPoolExecutor(processes, mp_context=torch.multiprocessing.get_context("spawn")) as pool:
        failures = dict(zip(jobs, pool.map(compiled, jobs), strict=True))
    print(*filter(None, failures.values()), sep="\n", flush=True)
    rows = [row for job in jobs if not failures[job] for row in tile_times(*job, sizes=IMAGES)]
    for case in sorted({(r["kernel"], r["images"], *r["tile"][:2]) for r in rows}):
        alike = (r for r in rows if (r["kernel"], r["images"], *r["tile"][:2]) == case)
        print(*case, [(r["tile"][2:], r["us"]) for r in sorted(alike, key=lambda r: r["us"])[:4]], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "tiles"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=14, help="that compile kernels before they are measured")
    parser.add_argument("--block", choices=("first", "norm"), help="the only kernels to measure tiles of")
    parser.add_argument("--cudnn", action="store_true", help="no blocks with convolutions of their own")
    options = parser.parse_args()
    if options.cudnn:
        small_blocks.MOST_VALUES = small_blocks.MOST_VALUES_OF_WEIGHTS = 0
    rows = list(step_times()) if options.what == "steps" else all_tile_times(options.block, options.processes)
    options.out.write_text(json.dumps({**provenance(), "microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
