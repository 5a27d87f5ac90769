"""The whole job: experts, coreset, control, posteriors, one folder with everything in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocoresets._io.files import (
    TensorFile,
    make_folder,
    only_writer,
    read_json,
    require_writable_folder,
    write_json,
    write_tensors,
)
from pseudocoresets._io.schema import ANY_OBJECT
from pseudocoresets.construction.loop import WATCHED_PARTS, Construction, Watch, watched_iterations
from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.core.mapping import Mapper, in_this_process
from pseudocoresets.core.progress import Job, Progress, Stage, task
from pseudocoresets.coreset import Coreset, library_versions
from pseudocoresets.data import load_dataset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.evaluation import EvaluationReport
from pseudocoresets.evaluation.report import control_coreset
from pseudocoresets.methods.selection import require_class_size
from pseudocoresets.sources.experts import Experts, ExpertSettings, train_block, train_experts
from pseudocoresets.workflows.construct import WorkFiles, construct_plan, write_log
from pseudocoresets.workflows.estimate import require_feasible
from pseudocoresets.workflows.evaluate import judge, judge_control, judging_stages, metrics_document
from pseudocoresets.workflows.outputs import require_same_request
from pseudocoresets.workflows.place import Workplace, workplace
from pseudocoresets.workflows.plan import Plan

ALONG = "along"
"""Holds the points as they were on the way."""
BLOCK = 4
"""Experts that are a unit of work, as many as a GPU trains side by side."""


@dataclass(frozen=True)
class Outcome:
    """What a run found, and the metrics document that says so."""

    coreset: EvaluationReport
    control: EvaluationReport
    metrics: Mapping[str, Any]
    folder: Path


def run_plan(
    plan: Plan,
    folder: str | Path,
    *,
    data_dir: str | Path = "data",
    experts_dir: str | Path | None = None,
    place: Workplace | None = None,
    force: bool = False,
) -> Outcome:
    """Carry out ``plan`` and leave config, coresets, metrics, log and picture in ``folder``.

    A finished run of another plan is replaced only by ``force``.
    """
    place = place or workplace()
    folder = Path(folder)
    require_writable_folder(folder)
    if not force:
        _require_no_other_run(folder, plan)
    data = load_dataset(plan.dataset, data_dir)
    require_class_size(data.train, plan.construction.ipc)
    require_feasible(plan, data, experts_dir or folder / "experts", place.device)
    timings: dict[str, float] = {}
    experts = None
    whole = Job(place.progress, "the whole job", stages_of(plan, data))
    with only_writer(folder), threads_for(data.shape), whole as job:
        place = replace(place, progress=job)
        if plan.needs_experts():
            with _timed(timings, "experts", job):
                experts = experts_for(plan, data, experts_dir or folder / "experts", place)
        with _timed(timings, "construct", job):
            made = construct_plan(plan, data, experts, WorkFiles.within(folder), place, watch=_kept_in(folder))
            made.coreset.save(folder / "coreset.safetensors", large_whitening=False)
        with _timed(timings, "posterior", job):
            report = judge(plan, made.coreset, data, experts, place)
        with _timed(timings, "control", job):
            control = judge_control(plan, made.coreset.network, data, experts, place)
        with _timed(timings, "along", job):
            along = accuracy_along(plan, folder, made, data, experts, place)
        metrics = metrics_document(plan, made.coreset, report, control, timings) | {"along": along}
        _write_run(folder, plan, data, made, metrics, place.device)
        made.discard_checkpoint()
    return Outcome(report, control, metrics, folder)


def _require_no_other_run(folder: Path, plan: Plan) -> None:
    if (folder / "metrics.json").is_file() and (folder / "config.json").is_file():
        found = read_json(folder / "config.json", ANY_OBJECT)
        require_same_request(folder, found, plan.as_json(), plan.defaults())


def accuracy_along(
    plan: Plan, folder: Path, made: Construction, data: Dataset, experts: Experts | None, place: Workplace
) -> list[dict[str, float]]:
    """The test accuracy of one chain on the coreset at the start, on the way and at the end of the construction."""
    if not made.history:
        return []
    last, steps = len(made.history), {0: made.initial}
    for at in watched_iterations(last):
        if (path := folder / ALONG / f"{at}.safetensors").is_file():
            steps[at] = _kept_at(path, made.coreset)
    steps[last] = made.coreset
    one_chain = replace(plan, sampling=replace(plan.sampling, chains=1), calibration=0)
    return [
        {"iteration": at, "accuracy": judge(one_chain, each, data, experts, place).accuracy.mean}
        for at, each in steps.items()
    ]


def _kept_at(path: Path, made: Coreset) -> Coreset:
    """The coreset as it was on the way, from a file of its points, which must be like those that were made."""
    points = TensorFile.open(path).tensors()
    for name, own in {"x": made.x, "y": made.y, "weights": made.weights}.items():
        found = points.get(name)
        if found is None or (found.shape, found.dtype) != (own.shape, own.dtype) or not bool(found.isfinite().all()):
            raise FileFormatError(f"'{path}' does not hold the points of this construction; remove it.")
    return replace(made, x=points["x"], y=points["y"], weights=points["weights"])


def _kept_in(folder: Path) -> Watch:
    """Keeps the points that it is shown, for a process that goes on after a kill too."""

    def keep(iteration: int, coreset: Coreset) -> None:
        points = {"x": coreset.x, "y": coreset.y, "weights": coreset.weights}
        write_tensors(make_folder(folder / ALONG) / f"{iteration}.safetensors", points, {"iteration": iteration})

    return keep


def experts_for(plan: Plan, data: Dataset, folder: str | Path, place: Workplace) -> Experts:
    """The plan's experts, trained as far as ``folder`` does not hold them."""
    return train_experts(
        data,
        plan.network,
        plan.expert_count,
        out=folder,
        device=place.device,
        backend=place.backend,
        progress=place.progress,
        **asdict(plan.experts),
    )


@dataclass(frozen=True)
class ExpertBlocks:
    """Trains blocks of the experts of a folder; each process reads the data itself."""

    dataset: str
    data_dir: Path
    network: str
    settings: ExpertSettings
    folder: Path
    place: Workplace
    population: int | None = None

    @cached_property
    def data(self) -> Dataset:
        return load_dataset(self.dataset, self.data_dir)

    def __call__(self, block: Sequence[int]) -> None:
        device, backend = self.place.device, self.place.backend
        train_block(self.data, self.network, block, self.settings, self.folder, device, backend, self.population)


def spread_experts(
    train: Callable[[Sequence[int]], None],
    dataset: str,
    count: int,
    mapper: Mapper,
    progress: Progress,
    at_once: int = BLOCK,
) -> None:
    """Have ``train`` make so many experts in blocks, if there is anybody else to do it."""
    if mapper is in_this_process:
        return
    blocks = [range(first, min(first + at_once, count)) for first in range(0, count, at_once)]
    with task(progress, f"training experts on {dataset}, {at_once} at a time", len(blocks)) as shown:
        for _ in mapper(train, blocks):
            shown.advance()


def folder_for(dataset: str, *words: str) -> Path:
    """Where a run goes if nobody says: runs/DATASET-WORD-WORD."""
    return Path("runs") / "-".join([dataset.replace(":", "-").replace("/", "-"), *words])


def _write_run(
    folder: Path,
    plan: Plan,
    data: Dataset,
    made: Construction,
    metrics: Mapping[str, Any],
    device: torch.device,
) -> None:
    control = control_coreset(plan.construction, data, made.coreset.network, 0)
    write_json(folder / "config.json", plan.as_json() | {"device": str(device), "libraries": library_versions()})
    made.initial.save(folder / "initial.safetensors", large_whitening=False)
    control.save(folder / "control.safetensors", large_whitening=False)
    write_log(folder / "log.jsonl", made.history)
    made.coreset.show(folder / "coreset.png")
    sides = {"most": metrics["most_certain"], "least": metrics["least_certain"]}
    examples = {side: data.test.images[[each["index"] for each in known]].cpu() for side, known in sides.items()}
    write_tensors(folder / "examples.safetensors", {side: _as_bytes(each) for side, each in examples.items()}, {})
    write_json(folder / "metrics.json", metrics)


def _as_bytes(images: Tensor) -> Tensor:
    """Images as pictures show them, whatever they are made of."""
    if images.dtype == torch.uint8:
        return images
    levels = images.float()
    return (255 * levels / levels.max().clamp_min(1)).clamp(0, 255).round().to(torch.uint8)


def stages_of(plan: Plan, data: Dataset) -> list[Stage]:
    """What a run will do; its work is counted in images that pass the network."""
    points = plan.construction.ipc * len(data.classes)
    learned = [stage for stage in plan.stages if stage.learns]
    stages = [
        Stage("construct", sum(points * stage.passes() for stage in learned) + points, max(1, len(learned))),
        *judging_stages(plan, data),
    ]
    stages.append(Stage("along", stages[1].work * (1 + WATCHED_PARTS) / plan.sampling.chains, 2 * (1 + WATCHED_PARTS)))
    if plan.needs_experts():
        stages.insert(0, Stage("experts", plan.expert_count * plan.experts.epochs * len(data.train)))
    return stages


@contextmanager
def _timed(timings: dict[str, float], name: str, job: Job) -> Iterator[None]:
    began = time.monotonic()
    with job.stage(name):
        yield
    timings[name] = time.monotonic() - began
