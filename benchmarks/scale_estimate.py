"""What larger jobs would take, computed from recorded unit costs: the tables of docs/scale.md.

    python benchmarks/scale_estimate.py

Rows: processor seconds of a pass over 1e8 rows of 20 features (large_data.json), in proportion to rows and shared
evenly by cores. Images: seconds of experts, iterations and evaluations on one H200 (bench_h200_alone.json, the newest
run); the time on many is that of the units that the busiest device gets, each after ``START`` seconds for the first.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
START = 30.0
"""Seconds until a device has its first unit: imports, data, kernels (of which bench_h200.json measures up to 21)."""
EXPERTS, EPOCHS, IMAGES, BLOCK = 100, 50, 50_000, 4
ITERATIONS = 2000
METHODS, SEEDS = 20, 5


def rows(record: dict[str, Any], count: float, cores: int) -> list[str]:
    """Seconds of a pass and of the whole fit, and what storage must deliver meanwhile."""
    passes, share = record["passes"], count / record["points"] / cores
    expectation = passes["processor_seconds_of_a_pass"]["expectation"]
    whole = sum(passes["passes"][name] * seconds for name, seconds in passes["processor_seconds_of_a_pass"].items())
    needed = record["bytes"] * count / record["points"] / (expectation * share) / 1e9
    return [f"{count:.0e}", str(cores), f"{expectation * share:,.0f}", f"{whole * share:,.0f}", f"{needed:.1f}"]


def images(bench: dict[str, float], devices: int) -> list[str]:
    """Seconds for 100 experts, and for 20 methods with 5 seeds each at ten images per class."""
    block = BLOCK * EPOCHS * IMAGES / bench["experts, with augmentation"]
    cell = ITERATIONS * bench["construction, ipc 10, k = 100, N = 1"] / 1000
    cell += bench["cold evaluation, ipc 10, 5 chains x 1000 steps"] / 1000
    experts = START + block * math.ceil(EXPERTS / BLOCK / devices)
    cells = START + cell * math.ceil(METHODS * SEEDS / devices)
    return [str(devices), f"{experts:,.0f}", f"{cells:,.0f}", f"{experts + cells:,.0f}"]


def table(columns: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(each)} |" for each in (columns, ["---"] * len(columns), *lines))


def main() -> None:
    large = json.loads((RESULTS / "large_data.json").read_text())
    runs = json.loads((RESULTS / "bench_h200_alone.json").read_text())["runs"]
    bench = {row["what"]: row["ours"] for run in runs for row in run["rows"]}
    columns = ["rows", "cores", "a pass, s", "nearest Gaussian and its check, s", "storage for that, GB/s"]
    print(table(columns, [rows(large, *each) for each in ((1e8, 2), (1e9, 2), (1e9, 64), (1e9, 512))]))
    print()
    columns = ["H200s", "100 experts, s", "20 methods x 5 seeds, s", "together, s"]
    print(table(columns, [images(bench, devices) for devices in (1, 8, 64)]))


if __name__ == "__main__":
    main()
