"""The whole job: experts, coreset, control, posteriors, one folder with everything in it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pseudocoresets._io.files import require_writable_folder, write_json, write_text
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS
from pseudocoresets.construction.loop import (
    Construction,
    network_for,
    run_construction,
)
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.devices import fit_threads, resolve_device
from pseudocoresets.core.progress import Progress, Silent
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.coreset import Coreset, library_versions, require_same_shape
from pseudocoresets.data import load_dataset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.evaluation import METRICS, EvaluationReport, evaluate, pooled
from pseudocoresets.inference.sampling import sample_posterior
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.methods import build_gradient_method
from pseudocoresets.methods.selection import SELECTIONS, require_class_size
from pseudocoresets.models.networks import NetworkSpec
from pseudocoresets.sources.experts import Experts, ExpertSettings, train_experts

CONTROL_DRAWS = 5


@dataclass(frozen=True)
class Stage:
    """A construction that comes before another, which starts from its coreset."""

    method: str
    method_options: Mapping[str, Any]
    construction: ConstructionSettings


class WorkFiles(NamedTuple):
    """What a construction keeps beside its result: where it goes on after a kill, and the last sound points."""

    checkpoint: Path
    rescue: Path

    def checkpoint_before(self, number: int) -> Path:
        """The checkpoint of the ``number``-th construction before, counted from 1."""
        return self.checkpoint.with_suffix(f".before-{number}.checkpoint")


@dataclass(frozen=True)
class Plan:
    """Everything that decides the outcome of a run."""

    dataset: str
    method: str
    network: str
    protocol: str
    expert_count: int
    experts: ExpertSettings
    construction: ConstructionSettings
    sampling: SamplingSettings
    method_options: Mapping[str, Any]
    control_draws: int = CONTROL_DRAWS
    before: tuple[Stage, ...] = ()
    """In their order; each starts from the coreset of the one before it."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def needs_experts(self) -> bool:
        """Whether its protocol, its method or one before draws from experts."""
        stages: tuple[Stage | Plan, ...] = (*self.before, self)
        learned = (stage for stage in stages if stage.method not in SELECTIONS)
        return self.protocol == "expert" or any(
            build_gradient_method(stage.method, stage.method_options).needs_source for stage in learned
        )

    def with_seed(self, seed: int) -> Plan:
        """The same plan with its constructions and samples drawn anew; the experts stay."""
        return replace(
            self,
            construction=replace(self.construction, seed=seed),
            sampling=replace(self.sampling, seed=seed),
            before=tuple(replace(stage, construction=replace(stage.construction, seed=seed)) for stage in self.before),
        )


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
    device: str | torch.device = "auto",
    progress: Progress | None = None,
) -> Outcome:
    """Carry out ``plan`` and leave config, coresets, metrics, log and picture in ``folder``."""
    progress = progress or Silent()
    device = resolve_device(device)
    folder = Path(folder)
    require_writable_folder(folder)
    data = load_dataset(plan.dataset, data_dir)
    fit_threads(data.shape)
    require_class_size(data.train, plan.construction.ipc)
    timings: dict[str, float] = {}
    experts = None
    if plan.needs_experts():
        with _timed(timings, "experts"):
            experts = experts_for(plan, data, experts_dir or folder / "experts", device, progress)
    with _timed(timings, "construct"):
        made = make_coreset(plan, data, experts, folder, device, progress, keep_checkpoint=True)
    with _timed(timings, "posterior"):
        report = judge(made.coreset, data, plan.protocol, plan.sampling, experts, device, progress)
    with _timed(timings, "control"):
        control = judge_control(plan, data, made.coreset.network, experts, device, progress)
    metrics = metrics_document(plan, report, control, timings)
    _write_run(folder, plan, data, made, metrics, device)
    made.discard_checkpoint()
    return Outcome(report, control, metrics, folder)


def experts_for(plan: Plan, data: Dataset, folder: str | Path, device: torch.device, progress: Progress) -> Experts:
    """The plan's experts, trained as far as ``folder`` does not hold them."""
    return train_experts(
        data,
        plan.network,
        plan.expert_count,
        out=folder,
        device=device,
        progress=progress,
        **asdict(plan.experts),
    )


def make_coreset(
    plan: Plan,
    data: Dataset,
    experts: Experts | None,
    folder: Path,
    device: torch.device,
    progress: Progress,
    keep_checkpoint: bool = False,
) -> Construction:
    """The plan's coreset, with checkpoints in ``folder``.

    With ``keep_checkpoint``, the caller discards the checkpoint once the coreset is safe.
    """
    files = WorkFiles(folder / "construction.checkpoint", folder / "last-good.safetensors")
    made = construct_plan(plan, data, experts, files, device, progress)
    if not keep_checkpoint:
        made.discard_checkpoint()
    return made


def construct_plan(
    plan: Plan,
    data: Dataset,
    experts: Experts | None,
    files: WorkFiles,
    device: str | torch.device,
    progress: Progress,
    initial: Coreset | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Construction:
    """The plan's construction, after the stages before it unless it starts from ``initial``.

    A selection of real images is one that learns nothing. The checkpoint of a stage, even when it is done, is what a
    later process goes on from; checkpoints stay until the construction discards them.
    """
    if plan.method in SELECTIONS:
        network = network_for(experts, plan.network, data)
        chosen = real_coreset(data, plan.construction, network.spec, plan.method)
        return Construction(chosen, chosen, [])
    run = partial(
        run_construction,
        data,
        experts,
        network=plan.network,
        checkpoint_seconds=checkpoint_seconds,
        rescue=files.rescue,
        device=device,
        progress=progress,
    )
    before, start = None, initial
    for number, stage in enumerate(plan.before if initial is None else (), 1):
        method, checkpoint = build_gradient_method(stage.method, stage.method_options), files.checkpoint_before(number)
        made = run(stage.method, method, stage.construction, checkpoint=checkpoint, initial=start)
        before, start = replace(made, before=before), made.coreset
    method = build_gradient_method(plan.method, plan.method_options)
    made = run(plan.method, method, plan.construction, checkpoint=files.checkpoint, initial=start)
    return replace(made, before=before)


def judge(
    coreset: Coreset,
    data: Dataset,
    protocol: str,
    sampling: SamplingSettings,
    experts: Experts | None,
    device: torch.device,
    progress: Progress,
    network: str | None = None,
) -> EvaluationReport:
    """Sample the coreset's posterior and score it on the test data."""
    require_same_shape(coreset, data)
    samples = sample_posterior(
        coreset,
        start=protocol,
        network=network,
        experts=experts,
        device=device,
        progress=progress,
        **asdict(sampling),
    )
    return evaluate(samples, data.test)


def judge_control(
    plan: Plan,
    data: Dataset,
    spec: NetworkSpec | None,
    experts: Experts | None,
    device: torch.device,
    progress: Progress,
    network: str | None = None,
) -> EvaluationReport:
    """Random real images, the same number, several draws of them, under the same protocol."""
    reports = []
    for draw in range(plan.control_draws):
        control = control_coreset(plan, data, spec, draw)
        reports.append(judge(control, data, plan.protocol, plan.sampling, experts, device, progress, network))
    return pooled(reports)


def control_coreset(plan: Plan, data: Dataset, spec: NetworkSpec | None, draw: int) -> Coreset:
    """One draw of random real images."""
    seed = derive_seed(plan.construction.seed, "control", draw)
    settings = replace(plan.construction, seed=seed, initialisation="random")
    return real_coreset(data, settings, spec, "random")


def metrics_document(
    plan: Plan, report: EvaluationReport, control: EvaluationReport, timings: Mapping[str, float]
) -> dict[str, Any]:
    """metrics.json: the coreset's scores, the control's beside them, and the gain."""
    return {
        "method": plan.method,
        "dataset": plan.dataset,
        "ipc": plan.construction.ipc,
        "network": plan.network,
        **report.as_json(),
        "control": control.as_json(),
        "gain": {name: getattr(report, name).mean - getattr(control, name).mean for name in METRICS},
        "seconds": sum(timings.values()),
        "timings": dict(timings),
    }


def write_log(path: str | Path, history: list[dict[str, float]]) -> None:
    """One JSON document a line, one line an iteration."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in history))


def _write_run(
    folder: Path,
    plan: Plan,
    data: Dataset,
    made: Construction,
    metrics: Mapping[str, Any],
    device: torch.device,
) -> None:
    control = control_coreset(plan, data, made.coreset.network, 0)
    write_json(folder / "config.json", plan.as_json() | {"device": str(device), "libraries": library_versions()})
    made.coreset.save(folder / "coreset.safetensors")
    made.initial.save(folder / "initial.safetensors")
    control.save(folder / "control.safetensors")
    write_log(folder / "log.jsonl", made.history)
    made.coreset.show(folder / "coreset.png")
    write_json(folder / "metrics.json", metrics)


@contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    timings[name] = time.monotonic() - began
