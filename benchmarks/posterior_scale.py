"""A coreset of 100 points from a million: built from a Parquet file read in streams, and sampled by NUTS.

    python benchmarks/posterior_scale.py --out benchmarks/results/posterior_scale.json

Logistic regression, n = 1,000,000, d = 50. The construction runs in a process of its own whose peak resident memory is
measured; the time of a NUTS draw is measured on the coreset and on the full data held in memory, with one chain each,
the same warm-up and the model's gradient in closed form on both sides.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pseudocoresets._io.files import read_tensors, write_json, write_tensors
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.core.points import Points
from pseudocoresets.core.progress import Silent
from pseudocoresets.core.targets import WhitenedTarget, all_points, whitened_target
from pseudocoresets.data.large import ParquetData
from pseudocoresets.kernels import NUTS
from pseudocoresets.methods import METHODS, row_problem
from pseudocoresets.models.glm import LogisticRegression
from pseudocoresets.sources.gaussian_fit import GaussianFit, fit_gaussian
from pseudocoresets.workflows.provenance import provenance

WARMUP = 150
"""Steps before the measured draws, long enough for the step size to settle."""


def write_data(path: Path, points: int, dimension: int, seed: int) -> None:
    """Standard normal features, coefficients of norm three, written a hundred thousand rows at a time."""
    import pyarrow
    from pyarrow import parquet

    stream = np.random.default_rng(seed)
    theta = stream.standard_normal(dimension)
    theta *= 3 / np.linalg.norm(theta)
    names = [f"x{i}" for i in range(dimension)]
    schema = pyarrow.schema([(name, pyarrow.float64()) for name in [*names, "y"]])
    with parquet.ParquetWriter(path, schema) as writer:
        for begin in range(0, points, 100_000):
            x = stream.standard_normal((min(100_000, points - begin), dimension))
            y = (stream.random(len(x)) < 1 / (1 + np.exp(-x @ theta))).astype(float)
            writer.write_table(pyarrow.table([*x.T, y], schema=schema))


def build(path: Path, out: Path, size: int, method: str) -> dict[str, Any]:
    """The construction alone; run in a process of its own."""
    began, processor = time.perf_counter(), time.process_time()
    data = ParquetData(path, "y")
    model = LogisticRegression(len(data.features))
    fit = GaussianFit(model, data)
    points = METHODS[method]().solve(row_problem(model, data, fit), size)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    write_tensors(out, {"x": points.x, "y": points.y, "weights": points.weights}, {})
    full, fitted = fit.gaussian, fit_gaussian(model, points)
    return {
        "build_seconds": seconds,
        "build_processor_seconds": processor,
        "approximation_seconds": fit.seconds,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "kl_full_coreset_nearest_gaussians": float(kl_divergence(full, fitted)),
        "kl_coreset_full_nearest_gaussians": float(kl_divergence(fitted, full)),
    }


def seconds_per_draw(target: WhitenedTarget, draws: int, seeds: int) -> dict[str, Any]:
    """Chains in whitened coordinates, one after the other, timed by the clock and by the processor time they used.

    The warm-up is not counted. How many leapfrog steps a draw takes depends on the step size that a chain has settled
    at, which differs from seed to seed.
    """
    start = torch.zeros(1, target.gaussian.size, dtype=torch.float64)
    clock = processor = leapfrogs = 0.0
    by_seed = []
    for seed in range(seeds):
        marks = _Marks(WARMUP)
        run = NUTS().run(target, start, draws, WARMUP, seed, marks)
        clock += time.perf_counter() - marks.clock
        processor += time.process_time() - marks.processor
        leapfrogs += float(run.gradients[0])
        by_seed.append(float(run.gradients[0]) / draws)
    return {
        "chains": seeds,
        "draws": draws,
        "warmup": WARMUP,
        "seconds_per_draw": clock / (seeds * draws),
        "seconds_per_leapfrog": clock / leapfrogs,
        "processor_seconds_per_draw": processor / (seeds * draws),
        "processor_seconds_per_leapfrog": processor / leapfrogs,
        "leapfrogs_per_draw": leapfrogs / (seeds * draws),
        "leapfrogs_per_draw_by_chain": by_seed,
    }


class _Marks(Silent):
    """A progress display that shows nothing and notes when the warm-up ended."""

    def __init__(self, warmup: int) -> None:
        self._left = warmup
        self.clock = self.processor = math.nan

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._left -= amount
        if self._left == 0:
            self.clock, self.processor = time.perf_counter(), time.process_time()


def measure_sampling(path: Path, coreset: Path) -> dict[str, Any]:
    data = ParquetData(path, "y")
    model = LogisticRegression(len(data.features))
    points = Points(**read_tensors(coreset)[0])
    gaussian = fit_gaussian(model, points)
    small = seconds_per_draw(whitened_target(model, points, gaussian), 1000, 5)
    large = seconds_per_draw(whitened_target(model, all_points(data), gaussian), 50, 1)
    ratios = {f"times_faster_by_{key}": large[key] / small[key] for key in small if "seconds" in key}
    return {"coreset": small, "full": large, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=50)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--method", default="moments")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/posterior_scale.json"))
    parser.add_argument("--no-sampling", action="store_true", help="Measure the construction alone.")
    parser.add_argument("--build-only", type=Path, nargs=2, metavar=("DATA", "CORESET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build_only is not None:
        print(json.dumps(build(*options.build_only, options.size, options.method)))
        return
    record: dict[str, Any] = {"provenance": provenance() | {"threads": torch.get_num_threads()}}
    record |= {"points": options.points, "dimension": options.dimension, "size": options.size, "method": options.method}
    with tempfile.TemporaryDirectory() as folder:
        data, coreset = Path(folder) / "data.parquet", Path(folder) / "coreset.safetensors"
        write_data(data, options.points, options.dimension, seed=0)
        record["file_mib"] = data.stat().st_size / 2**20
        command = [sys.executable, __file__, "--size", str(options.size), "--method", options.method]
        command += ["--build-only", str(data), str(coreset)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        record["build"] = json.loads(done.stdout)
        write_json(options.out, record)
        if not options.no_sampling:
            record["sampling"] = measure_sampling(data, coreset)
    write_json(options.out, record)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
