"""Many cells of a table (data set, images per class, method, seed) side by side on one GPU.

    python benchmarks/cells.py --jobs benchmarks/jobs/search.json --split validation --data-dir .data --out $OUT/cells

``--jobs`` is a list of documents such as

    {"dataset": "cifar10", "ipc": 10, "method": "cd", "seeds": [0, 1],
     "options": {...}, "construction": {...}, "sampling": [{}, {"temperature": 0.01}]}

where everything but the first three is optional and changes the preset ``paper``; several entries in ``sampling``
evaluate the same coreset several times. With ``"iterations": 1500, "every": 500, "seconds": 60`` the construction goes
on to 1,500 iterations in parts of 500 and ends with the first part that is done after 60 seconds; on validation data it
is evaluated after each part, on test data once, at the end.

A construction is too small to fill a GPU, so ``--workers`` processes take jobs from one queue, sharing the device
through the multi-process service where it can be started. Seconds in the results are therefore those of a shared
device. Two processes are worth their while, where one of them waits for its host; with fourteen each was twenty times
slower.

``--split validation`` holds a tenth of the training data out and never touches the test data; settings are chosen on
it. Experts are trained first and shared by all cells of a data set. cells.json is written after every job.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import queue
import subprocess
import tempfile
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from provenance import provenance
from pseudocoresets.commands.planning import make_plan
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.devices import resolve_device
from pseudocoresets.experts import load_experts
from pseudocoresets.files import write_tensors
from pseudocoresets.inference import SamplingSettings
from pseudocoresets.pipeline import Plan, control_coreset, experts_for, judge, make_coreset
from pseudocoresets.progress import Silent

NETWORK = "convnet:depth=3,width=128"
HELD_OUT = 0.1


def plan_for(job: dict[str, Any], seed: int, expert_count: int, epochs: int) -> Plan:
    plan = make_plan(
        dataset=job["dataset"],
        method=job["method"],
        network=NETWORK,
        ipc=job["ipc"],
        protocol="cold",
        sampler="langevin",
        preset="paper",
        seed=0,
        expert_count=expert_count,
        experts={"epochs": epochs},
        construction=job.get("construction"),
        method_options=job.get("options"),
    )
    seeded = {"construction": replace(plan.construction, seed=seed), "sampling": replace(plan.sampling, seed=seed)}
    return replace(plan, **seeded)


class Workplace:
    """What one process keeps between jobs: data sets by name."""

    def __init__(self, data_dir: Path, split: str, folder: Path, expert_count: int, epochs: int) -> None:
        self._data_dir, self._split, self._folder = data_dir, split, folder
        self._expert_count, self._epochs = expert_count, epochs
        self._data: dict[str, Dataset] = {}

    def data(self, name: str) -> Dataset:
        if name not in self._data:
            whole = load_dataset(name, self._data_dir)
            self._data[name] = whole.holding_out(HELD_OUT) if self._split == "validation" else whole
        return self._data[name]

    def experts_folder(self, name: str) -> Path:
        return self._data_dir / f"experts-{name}-{self._split}-{self._expert_count}x{self._epochs}"

    def train_experts(self, name: str) -> dict[str, Any]:
        began = time.monotonic()
        plan = plan_for({"dataset": name, "ipc": 1, "method": "cd"}, 0, self._expert_count, self._epochs)
        experts_for(plan, self.data(name), self.experts_folder(name), resolve_device("auto"), Silent())
        return {"experts": name, "count": self._expert_count, "epochs": self._epochs, "seconds": _since(began)}

    def run(self, job: dict[str, Any], seed: int) -> dict[str, Any]:
        began = time.monotonic()
        plan = plan_for(job, seed, self._expert_count, self._epochs)
        data, device = self.data(job["dataset"]), resolve_device("auto")
        experts = load_experts(self.experts_folder(job["dataset"]))
        row: dict[str, Any] = {"job": job, "seed": seed}
        if job["method"] == "random":
            coreset = control_coreset(plan, data, experts.network.spec, 0)
            return row | self._evaluations(coreset, data, plan, job)
        folder = self._folder / _name(job, seed)
        folder.mkdir(parents=True, exist_ok=True)
        curve = []
        most = job.get("iterations", plan.construction.iterations)
        part = job.get("every", most)
        for iterations in range(part, most + 1, part):
            plan = replace(plan, construction=replace(plan.construction, iterations=iterations))
            made = make_coreset(plan, data, experts, folder, device, Silent(), keep_checkpoint=True)
            late = _since(began) > job.get("seconds", math.inf)
            if late:
                break
            if self._split == "validation":
                curve.append({"iterations": iterations, **self._evaluate(made.coreset, data, plan, {})})
        made.discard_checkpoint()
        self._save_points(made.coreset, folder)
        tail = made.history[-50:]
        row |= {
            "iterations": iterations,
            "points": f"{_name(job, seed)}/points.safetensors",
            "construct_seconds": _since(began),
            "seconds_per_iteration": made.seconds_per_iteration,
            "peak_memory": made.peak_memory,
            "last": {key: sum(r[key] for r in tail) / len(tail) for key in tail[0] if key != "iteration"},
            "curve": curve,
        }
        return row | self._evaluations(made.coreset, data, plan, job) | {"seconds": _since(began)}

    @staticmethod
    def _save_points(coreset: Coreset, folder: Path) -> None:
        """Without the whitening, which is larger than all of them and can be fitted again."""
        images = coreset.images.half()
        write_tensors(
            folder / "points.safetensors",
            {"images": images, "labels": coreset.labels, "weights": coreset.weights},
            {"source": coreset.source, "method": coreset.method},
        )

    def _evaluations(self, coreset: Coreset, data: Dataset, plan: Plan, job: dict[str, Any]) -> dict[str, Any]:
        found = [self._evaluate(coreset, data, plan, change) for change in job.get("sampling", [{}])]
        return {"evaluations": found, "plan": plan.as_json()}

    def _evaluate(self, coreset: Coreset, data: Dataset, plan: Plan, change: dict[str, Any]) -> dict[str, Any]:
        settings = SamplingSettings(**(asdict(plan.sampling) | change))
        report = judge(coreset, data, plan.protocol, settings, None, resolve_device("auto"), Silent())
        return {"sampling": change, "chain_accuracy": report.accuracy.mean, **report.ensemble}


def work(workplace: Workplace, threads: int, tasks: Any, results: Any) -> None:
    torch.set_num_threads(threads)
    while True:
        try:
            kind, *details = tasks.get(timeout=1)
        except queue.Empty:
            return
        try:
            results.put(getattr(workplace, kind)(*details))
        except Exception as error:
            results.put({"failed": details, "error": repr(error), "traceback": traceback.format_exc()})


def run_side_by_side(
    tasks: list[tuple[Any, ...]], workplace: Workplace, workers: int, until: float, report: Any
) -> None:
    """Hand each result to ``report``; what is not done ``until`` then is stopped."""
    context = multiprocessing.get_context("spawn")
    waiting, results = context.Queue(), context.Queue()
    for task in tasks:
        waiting.put(task)
    workers = min(workers, len(tasks))
    threads = max(1, (os.cpu_count() or 1) // workers)
    processes = [
        context.Process(target=work, args=(workplace, threads, waiting, results), daemon=True) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    left = len(tasks)
    while left and time.monotonic() < until:
        try:
            report(results.get(timeout=1))
            left -= 1
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                break
    for process in processes:
        process.terminate()


def start_sharing() -> bool:
    """NVIDIA's multi-process service, so that the processes' kernels run at the same time."""
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        folder = os.environ.setdefault(name, str(Path(tempfile.gettempdir()) / name.lower()))
        Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    if done is not None and done.returncode == 0 and _computes():
        return True
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        del os.environ[name]
    return False


def _computes() -> bool:
    """Whether a process that uses the service can compute anything."""
    code = "import torch; assert float(torch.ones(2, device='cuda').sum()) == 2"
    try:
        return subprocess.run(["python3", "-c", code], check=False, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def summary(row: dict[str, Any]) -> str:
    if "job" not in row:
        return json.dumps({key: value for key, value in row.items() if key != "traceback"})
    job = row["job"]
    changes = {**job.get("options", {}), **job.get("construction", {})}
    text = " ".join(f"{key}={value}" for key, value in changes.items())
    found = "; ".join(
        f"{json.dumps(e['sampling'])} {100 * e['accuracy']:.1f} ({100 * e['chain_accuracy']:.1f}) "
        f"nll {e['nll']:.3f} ece {e['ece']:.3f}"
        for e in row["evaluations"]
    )
    pace = 1e3 * row.get("seconds_per_iteration", 0)
    curve = " ".join(
        f"{at['iterations']}:{100 * at['accuracy']:.1f}({100 * at['chain_accuracy']:.1f})"
        for at in row.get("curve", [])
    )
    cell = f"{job['dataset']} {job['ipc']} {job['method']} s{row['seed']}"
    return (
        f"{cell} [{text}] {row.get('seconds', 0):.0f}s {pace:.0f}ms: {curve} {found} {json.dumps(row.get('last', {}))}"
    )


def _name(job: dict[str, Any], seed: int) -> str:
    label = job.get("label", job["method"])
    return f"{job['dataset']}-ipc{job['ipc']}-{label}-seed{seed}"


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--split", choices=["validation", "test"], default="validation")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--experts", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=540)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    jobs = json.loads(options.jobs.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    sharing = start_sharing()
    print("shared by the multi-process service:", sharing, flush=True)
    document: dict[str, Any] = {**provenance(), "split": options.split, "workers": options.workers, "sharing": sharing}
    document["rows"] = []

    def report(row: dict[str, Any]) -> None:
        document["rows"].append(row)
        (options.out / "cells.json").write_text(json.dumps(document, indent=1) + "\n")
        print(summary(row), flush=True)

    place = Workplace(options.data_dir, options.split, options.out, options.experts, options.epochs)
    sets = sorted({job["dataset"] for job in jobs})
    run_side_by_side([("train_experts", name) for name in sets], place, len(sets), until, report)
    tasks = [("run", job, seed) for job in jobs for seed in job.get("seeds", [0])]
    run_side_by_side(tasks, place, options.workers, until, report)


if __name__ == "__main__":
    main()
