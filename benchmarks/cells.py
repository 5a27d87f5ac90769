"""Cells of a table: data set, images per class, method and seed, constructed and judged one after another.

    python benchmarks/cells.py --jobs benchmarks/jobs/paper.json --data-dir .data --out $OUT/cells

``--jobs`` is a list of documents such as

    {"dataset": "cifar10", "ipc": 10, "method": "cd", "seeds": [0, 1], "label": "cd-plain", "initial": "wasserstein",
     "options": {...}, "construction": {...}, "sampling": [{}, {"temperature": 0.01}]}

where everything but the first three is optional and changes the preset ``paper``; ``initial`` names the label of an
earlier job of the same cell and seed whose points this one starts from. With ``"iterations": 1500, "every": 500,
"seconds": 60`` the construction goes on to 1,500 iterations in parts of 500 and ends with the first part that is done
after 60 seconds. ``"lengths": [1000, 2000]`` are the numbers of steps after which chains may stop.

A part of the training data is held out from experts and constructions alike. Each coreset is sampled once for every
entry of ``sampling``, and the held-out part decides which of them is used, and when chains stop: after T of their
steps, with samples from the second half of that time. It is the choice of highest accuracy among those with an ECE
of at most 0.03, or that of the lowest ECE where there is none. With ``--test``, that choice is then judged on the test
data, once; not for a job with ``"test": false``, which others only start from.

Experts are trained first, where a job draws from them, and shared by all cells of a data set. cells.json is written
after every job. With ``--earlier`` and the folder of an earlier run, jobs that it constructed in the same way are not
constructed again.

``--workers 6`` takes up to six jobs at once, each when what it starts from is done. A device is shared well by several
processes only under CUDA's multi-process service (``nvidia-cuda-mps-control -d``); the seconds of a row are then those
of a device that was shared.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from provenance import provenance
from pseudocoresets.construction.loop import Construction, network_for, run_construction
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import Dataset, Split, load_dataset
from pseudocoresets.evaluation.metrics import all_metrics
from pseudocoresets.evaluation.report import control_coreset
from pseudocoresets.inference.sampling import PosteriorSamples, sample_posterior
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.methods import build_gradient_method
from pseudocoresets.sources.experts import Experts, load_experts
from pseudocoresets.workflows.place import workplace as device_place
from pseudocoresets.workflows.plan import Plan, make_plan
from pseudocoresets.workflows.run import experts_for

NETWORK = "convnet:depth=3,width=128"
SPACING = 40
"""Steps between two positions of a chain that are kept."""
LENGTHS = (200, 400, 600, 800, 1000)
"""Chains may stop after so many steps, unless a job says otherwise."""
THREADS = 8
LARGEST_ECE = 0.03
"""On held-out data; it is up to 0.02 more on other data."""
CONSTRUCTED = ("iterations", "coreset", "construct_seconds", "seconds_per_iteration", "peak_memory", "last")


def plan_for(job: dict[str, Any], seed: int, expert_count: int, epochs: int) -> Plan:
    plan = make_plan(
        dataset=job["dataset"],
        method=job["method"],
        network=NETWORK,
        ipc=job["ipc"],
        protocol="cold",
        sampler=None,
        preset="paper",
        seed=0,
        expert_count=expert_count,
        experts={"epochs": epochs},
        construction=job.get("construction"),
        method_options=job.get("options"),
    )
    return plan.with_seed(seed)


@dataclass(frozen=True)
class Choice:
    """Chains sampled in one way and stopped at one time, and how good that is on the held-out data."""

    samples: PosteriorSamples
    change: dict[str, Any]
    steps: int
    found: dict[str, float]

    def kept(self) -> slice:
        """Which samples count: those of the second half, or all that a schedule keeps."""
        if self.samples.settings.schedule != "constant":
            return slice(None)
        last = self.steps // SPACING
        return slice(last // 2, last)

    def as_json(self) -> dict[str, Any]:
        return {"sampling": self.change, "steps": self.steps, **self.found}

    def judged_on(self, split: Split) -> dict[str, float]:
        kept = replace(self.samples, parameters=self.samples.parameters[:, self.kept()])
        return scores(kept.predict(split.images), split.labels)


def scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Metrics of the average over all chains and samples, and the mean accuracy of single chains."""
    labels = labels.to(probabilities.device)
    single = [all_metrics(chain.mean(0), labels)["accuracy"] for chain in probabilities]
    return all_metrics(probabilities.flatten(0, 1).mean(0), labels) | {"chain_accuracy": sum(single) / len(single)}


def choices(coreset: Coreset, settings: SamplingSettings, job: dict[str, Any], split: Split) -> Iterator[Choice]:
    """Every way to sample, each with every time to stop; a schedule is drawn anew for each, unless it names its own."""
    lengths = job.get("lengths", LENGTHS)
    for change in job.get("sampling", [{}]):
        scheduled = (asdict(settings) | change)["schedule"] != "constant"
        own = [change["steps"]] if "steps" in change else lengths
        for group in [[steps] for steps in own] if scheduled else [lengths]:
            longest = max(group)
            whole = {"steps": longest} | ({} if scheduled else {"samples": longest // SPACING, "burn_in": 0.0})
            changed = SamplingSettings(**(asdict(settings) | whole | change))
            samples = sample_posterior(coreset, start="cold", **asdict(changed))
            probabilities = samples.predict(split.images)
            for steps in group:
                choice = Choice(samples, change, steps, {})
                yield replace(choice, found=scores(probabilities[:, choice.kept()], split.labels))


def best(found: Sequence[Choice]) -> Choice:
    calibrated = [choice for choice in found if choice.found["ece"] <= LARGEST_ECE]
    if calibrated:
        return max(calibrated, key=lambda choice: choice.found["accuracy"])
    return min(found, key=lambda choice: choice.found["ece"])


@dataclass(frozen=True)
class Order:
    """What holds for all jobs of a run."""

    data_dir: Path
    folder: Path
    earlier: Path | None
    expert_count: int
    epochs: int
    held_out: float
    test: bool


class Workplace:
    """Where jobs are done: data sets by name, and where experts and points lie."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._data: dict[str, tuple[Dataset, Split]] = {}
        self._experts: dict[str, Experts] = {}
        self._place = device_place()

    def data(self, job: dict[str, Any]) -> tuple[Dataset, Split]:
        """Training data with the held-out part for its test data, and the real test data."""
        name = job["dataset"]
        if name not in self._data:
            whole = load_dataset(name, self._order.data_dir)
            self._data[name] = whole.holding_out(self._order.held_out), whole.test
        return self._data[name]

    def train_experts(self, job: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        data, _ = self.data(job)
        _ = data.transform
        prepared = _since(began)
        plan = self._plan(job | {"method": "cd", "options": {}}, 0)
        experts_for(plan, data, self._expert_folder(job), self._place)
        return {
            "experts": job["dataset"],
            "count": self._order.expert_count,
            "epochs": self._order.epochs,
            "data_seconds": prepared,
            "seconds": _since(began),
        }

    def experts(self, job: dict[str, Any]) -> Experts | None:
        """Those that were trained for the job, if it draws from any."""
        if not draws_from_experts(job):
            return None
        name = job["dataset"]
        if name not in self._experts:
            self._experts[name] = load_experts(self._expert_folder(job))
        return self._experts[name]

    def run(self, job: dict[str, Any], seed: int) -> dict[str, Any]:
        began = time.monotonic()
        plan = self._plan(job, seed)
        data, test = self.data(job)
        row: dict[str, Any] = {"job": job, "seed": seed}
        if job["method"] == "random":
            coreset = control_coreset(plan.construction, data, network_for(None, NETWORK, data).spec, 0)
        elif (before := self._constructed_before(job, seed)) is not None:
            shutil.copy(self._order.earlier / before["coreset"], self._order.folder)
            coreset = self._saved(job, seed, data)
            row |= {key: before[key] for key in CONSTRUCTED}
            plan = replace(plan, construction=replace(plan.construction, iterations=before["iterations"]))
        else:
            made, plan = self._construct(job, seed, plan, data)
            coreset, tail = made.coreset, made.history[-50:]
            row |= {
                "iterations": plan.construction.iterations,
                "coreset": f"{_name(job, seed)}.safetensors",
                "construct_seconds": _since(began),
                "seconds_per_iteration": made.seconds_per_iteration,
                "peak_memory": made.peak_memory,
                "last": {key: sum(r[key] for r in tail) / len(tail) for key in tail[0] if key != "iteration"},
            }
        began = time.monotonic()
        found = list(choices(coreset, plan.sampling, job, data.test))
        chosen = best(found)
        row |= {"choices": [choice.as_json() for choice in found], "chosen": chosen.as_json(), "plan": plan.as_json()}
        if self._order.test and job.get("test", True):
            row["test"] = chosen.judged_on(test)
        return row | {"judge_seconds": _since(began)}

    def _construct(self, job: dict[str, Any], seed: int, plan: Plan, data: Dataset) -> tuple[Construction, Plan]:
        began = time.monotonic()
        initial = self._saved(job | {"label": job["initial"]}, seed, data) if "initial" in job else None
        most = job.get("iterations", plan.construction.iterations)
        part = job.get("every", most)
        for iterations in range(part, most + 1, part):
            plan = replace(plan, construction=replace(plan.construction, iterations=iterations))
            made = run_construction(
                data,
                self.experts(job),
                plan.method,
                build_gradient_method(plan.method, plan.method_options),
                plan.construction,
                network=NETWORK,
                checkpoint=self._order.folder / f"{_name(job, seed)}.checkpoint",
                initial=initial,
                device=self._place.device,
            )
            if _since(began) > job.get("seconds", math.inf):
                break
        made.discard_checkpoint()
        made.coreset.save(self._order.folder / f"{_name(job, seed)}.safetensors", compact=True)
        return made, plan

    def _plan(self, job: dict[str, Any], seed: int) -> Plan:
        return plan_for(job, seed, self._order.expert_count, self._order.epochs)

    def _expert_folder(self, job: dict[str, Any]) -> Path:
        trained = f"{self._order.held_out}-{self._order.expert_count}x{self._order.epochs}"
        return self._order.data_dir / f"experts-{job['dataset']}-{trained}"

    def _saved(self, job: dict[str, Any], seed: int, data: Dataset) -> Coreset:
        return replace(Coreset.load(self._order.folder / f"{_name(job, seed)}.safetensors"), transform=data.transform)

    def _constructed_before(self, job: dict[str, Any], seed: int) -> dict[str, Any] | None:
        if self._order.earlier is None:
            return None
        rows = json.loads((self._order.earlier / "cells.json").read_text())["rows"]
        made = (row for row in rows if row.get("seed") == seed and "coreset" in row)
        return next((row for row in made if _construction(row["job"]) == _construction(job)), None)


def draws_from_experts(job: dict[str, Any]) -> bool:
    return job["method"] != "random" and build_gradient_method(job["method"]).needs_source


def summary(row: dict[str, Any]) -> str:
    if "job" not in row:
        return json.dumps({key: value for key, value in row.items() if key != "traceback"})
    job = row["job"]
    changes = {**job.get("options", {}), **job.get("construction", {})}
    text = " ".join(f"{key}={value}" for key, value in changes.items())
    seconds = f"{row.get('construct_seconds', 0):.0f}+{row['judge_seconds']:.0f}s"
    pace = f"{row.get('iterations', 0)} x {1e3 * row.get('seconds_per_iteration', 0):.1f}ms"
    found = "; ".join(f"{json.dumps(c['sampling'])}@{c['steps']} {_figures(c)}" for c in row["choices"])
    test = f" TEST {_figures(row['test'])}" if "test" in row else ""
    cell = f"{job['dataset']} {job['ipc']} {job.get('label', job['method'])} s{row['seed']}"
    chosen = f"CHOSEN @{row['chosen']['steps']} {_figures(row['chosen'])}"
    return f"{cell} [{text}] {seconds} {pace}: {found} | {chosen}{test} {json.dumps(row.get('last', {}))}"


def _figures(found: dict[str, Any]) -> str:
    accuracy, single = 100 * found["accuracy"], 100 * found["chain_accuracy"]
    return f"{accuracy:.1f}({single:.1f})/{found['nll']:.2f}/{found['ece']:.3f}"


def _construction(job: dict[str, Any]) -> dict[str, Any]:
    """What of a job decides its points."""
    return {key: value for key, value in job.items() if key not in ("seeds", "sampling", "lengths", "test")}


def _name(job: dict[str, Any], seed: int) -> str:
    label = job.get("label", job["method"])
    return f"{job['dataset']}-ipc{job['ipc']}-{label}-seed{seed}"


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)


@dataclass(frozen=True)
class Task:
    """One construction, or, without a seed, the experts that a job draws from."""

    job: dict[str, Any]
    seed: int | None = None

    @property
    def name(self) -> str:
        return f"experts of {self.job['dataset']}" if self.seed is None else _name(self.job, self.seed)

    def needs(self) -> set[str]:
        """The names of the tasks that must come first, if they are to be done at all."""
        if self.seed is None:
            return set()
        names = {Task(self.job).name} if draws_from_experts(self.job) else set()
        if "initial" in self.job:
            names.add(_name(self.job | {"label": self.job["initial"]}, self.seed))
        return names


def tasks_of(jobs: Sequence[dict[str, Any]]) -> list[Task]:
    experts = {job["dataset"]: job for job in jobs if draws_from_experts(job)}
    return [Task(job) for job in experts.values()] + [Task(job, seed) for job in jobs for seed in job.get("seeds", [0])]


@cache
def workplace(order: Order) -> Workplace:
    """This process's own."""
    return Workplace(order)


def attempt(order: Order, task: Task) -> dict[str, Any]:
    place = workplace(order)
    try:
        return place.train_experts(task.job) if task.seed is None else place.run(task.job, task.seed)
    except Exception as error:  # the other cells go on
        return {"failed": [task.job, task.seed], "error": repr(error), "traceback": traceback.format_exc()}


def rows_of(order: Order, tasks: Sequence[Task], workers: int, until: float) -> Iterator[dict[str, Any]]:
    """What the tasks found, as they are done; none is begun after ``until``."""
    if workers == 1:
        yield from (attempt(order, task) for task in tasks if time.monotonic() < until)
        return
    waiting, running = list(tasks), dict[Future[dict[str, Any]], Task]()
    threads = max(1, THREADS // workers)
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        while waiting or running:
            unfinished = {task.name for task in (*waiting, *running.values())}
            ready = [task for task in waiting if not task.needs() & unfinished]
            for task in ready[: workers - len(running)] if time.monotonic() < until else ():
                waiting.remove(task)
                running[pool.submit(attempt, order, task)] = task
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                del running[future]
                yield future.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--earlier", type=Path)
    parser.add_argument("--only", nargs=2, metavar=("DATASET", "IPC"), help="The jobs of one cell.")
    parser.add_argument("--experts", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--held-out", type=float, default=0.1)
    parser.add_argument("--test", action="store_true", help="Judge each row's choice on the test data.")
    parser.add_argument("--workers", type=int, default=1, help="Jobs at once, each in a process of its own.")
    parser.add_argument("--seconds", type=float, default=540, help="Begin no job after this time.")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    jobs = json.loads(options.jobs.read_text())
    if options.only:
        jobs = [job for job in jobs if [job["dataset"], str(job["ipc"])] == options.only]
    options.out.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {**provenance(), "held_out": options.held_out, "rows": []}
    order = Order(
        options.data_dir,
        options.out,
        options.earlier,
        options.experts,
        options.epochs,
        options.held_out,
        options.test,
    )
    for row in rows_of(order, tasks_of(jobs), options.workers, until):
        document["rows"].append(row)
        (options.out / "cells.json").write_text(json.dumps(document, indent=1) + "\n")
        print(summary(row), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    main()
