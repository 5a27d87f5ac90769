"""A coreset from more data than memory: logistic regression on Parquet files that are read in parts.

    python benchmarks/large_data.py --points 100000000 --folder FOLDER --out benchmarks/results/large_data.json

Writes the data (float32, a file for each million rows), runs ``bpc posterior`` on them as a command of its own, and
records its seconds, those of a pass, and the memory of all its processes together, sampled twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pseudocoresets._io.files import read_tensors, write_json
from pseudocoresets.workflows.provenance import provenance

PART = 1_000_000
ROW_GROUP = 131_072


def write_data(folder: Path, points: int, dimension: int, seed: int) -> np.ndarray:
    """Standard normal features and coefficients of norm three; files that are there stay."""
    import pyarrow
    from pyarrow import parquet

    theta = np.random.default_rng(seed).standard_normal(dimension)
    theta *= 3 / np.linalg.norm(theta)
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"x{i}" for i in range(dimension)), "y"]
    for number, begin in enumerate(range(0, points, PART)):
        path = folder / f"part-{number:05d}.parquet"
        if path.exists():
            continue
        stream = np.random.default_rng([seed, number])
        x = stream.standard_normal((dimension, min(PART, points - begin)), dtype=np.float32)
        y = (stream.random(x.shape[1]) < 1 / (1 + np.exp(-theta @ x))).astype(np.float32)
        table = pyarrow.table([*x, y], names=names)
        parquet.write_table(table, f"{path}.tmp", ROW_GROUP, compression="none", use_dictionary=False)
        Path(f"{path}.tmp").rename(path)
    return theta


def memory_of_tree(root: int) -> int:
    """Resident bytes of a process and all below it."""
    parents, resident = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            resident[int(entry.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    tree = {root}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(resident.get(each, 0) for each in tree)


def run(command: list[str], cwd: Path) -> dict[str, Any]:
    began, peak = time.perf_counter(), 0
    with (cwd / "output.json").open("w") as output:
        process = subprocess.Popen(command, stdout=output, cwd=cwd)
        while process.poll() is None:
            peak = max(peak, memory_of_tree(process.pid))
            time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"The command ended with status {process.returncode}.")
    found = json.loads((cwd / "output.json").read_text())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = {"processor_seconds": used.ru_utime + used.ru_stime, "load_at_the_end": os.getloadavg()[0]}
    return {"seconds": time.perf_counter() - began, **processor, "peak_memory_gib": peak / 2**30, "study": found}


def passes(store: Path, parts: int) -> dict[str, Any]:
    """Seconds of every kept term of a sum, which are those of whole passes."""
    every = [read_tensors(path) for path in sorted(store.glob("*.safetensors"))]
    sums = {"expectation": 3, "log-likelihoods": 1}
    costs = {
        name: [about["processor_seconds"] for terms, about in every if "seconds" in about and len(terms) == count]
        for name, count in sums.items()
    }
    return {
        "parts": parts,
        "passes": {name: len(each) / parts for name, each in costs.items()},
        "processor_seconds_of_a_pass": {name: parts * sum(each) / len(each) for name, each in costs.items()},
        "units_kept": len(every),
        "bytes_kept": sum(path.stat().st_size for path in store.glob("*.safetensors")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000_000)
    parser.add_argument("--dimension", type=int, default=20)
    parser.add_argument("--size", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True, help="Where the data go; 'data' in it is deleted.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="Leave the data there.")
    options = parser.parse_args()
    data, work = options.folder.absolute() / "data", options.folder.absolute() / "work"
    work.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    write_data(data, options.points, options.dimension, seed=0)
    written = time.perf_counter() - began
    command = [sys.executable, "-m", "pseudocoresets", "posterior", "--data", str(data), "--target", "y"]
    command += ["--sizes", str(options.size), "--jobs", str(options.jobs), "--json", "--out", "study"]
    record: dict[str, Any] = {"provenance": provenance(), "points": options.points, "dimension": options.dimension}
    record |= {"bytes": sum(path.stat().st_size for path in data.glob("*.parquet")), "seconds_to_write": written}
    record |= {"jobs": options.jobs, **run(command, work)}
    record["passes"] = passes(work / ".cache" / "posterior" / "parts", len(list(data.glob("*.parquet"))))
    write_json(options.out, record)
    if not options.keep:
        shutil.rmtree(data)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
