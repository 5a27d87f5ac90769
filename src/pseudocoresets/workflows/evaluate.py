"""Sampling and scoring the posterior of a coreset, and of the control that stands beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocoresets._io.files import require_writable, write_json
from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import Job, Stage
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.coreset import Coreset, require_same_shape
from pseudocoresets.data import FOLDER_PREFIX, find_entry, load_dataset
from pseudocoresets.data.corruptions import CORRUPTIONS
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.data.restoring import MissingWhitening
from pseudocoresets.evaluation import EvaluationReport, Predictions, evaluate, pooled
from pseudocoresets.evaluation.calibration import PRIVATE_CALIBRATION
from pseudocoresets.evaluation.report import CONTROL_DRAWS, control_coreset
from pseudocoresets.evaluation.shift import corrupted_split
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.inference.sampling import is_elsewhere, network_for, sample_posterior
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import NetworkSpec
from pseudocoresets.sources.experts import Experts, load_experts, require_experts_for
from pseudocoresets.workflows.place import Workplace
from pseudocoresets.workflows.plan import Plan, make_plan

CONTROL_IS_NOT_COVERED = (
    "The guarantee of differential privacy is of the coreset alone: the control's figures are those of real images of "
    "the private data. Keep them to yourself, or leave them out with --controls 0."
)
PASS_WITHOUT_GRADIENT = 1 / 3
TASKS_OF_JUDGING = 2
"""Sampling and predicting; to calibrate is one more."""


def require_listed_shape(coreset: Coreset, dataset: str) -> None:
    """Refuse a data set of another shape before anything is fetched; a folder's is known only when it is read."""
    if not dataset.startswith(FOLDER_PREFIX):
        require_same_shape(coreset, find_entry(dataset))


def evaluate_file(
    coreset_file: str | Path,
    place: Workplace,
    *,
    dataset: str | None = None,
    network: str | None = None,
    experts: Path | None = None,
    data_dir: str | Path = "data",
    out: Path | None = None,
    corruption: str | None = None,
    severity: int = 3,
    reference: Path | None = None,
    predictions: Path | None = None,
    controls: int = CONTROL_DRAWS,
    calibration: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """The metrics of a coreset file beside its control, if it has draws; ``settings`` are those of ``make_plan``.

    With a ``corruption``, the test images are those of the data set under it. A ``reference`` is a file of predictions
    to compare with; ``predictions`` is where to write the coreset's own. ``calibration`` training images choose how
    sure predictions should be, or as many as the preset says, but none of private data.
    """
    coreset = Coreset.load(coreset_file)
    if coreset.guarantee is not None:
        if calibration:
            raise InputError(PRIVATE_CALIBRATION)
        calibration = 0
    known = None if reference is None else Predictions.load(reference)
    plan = make_plan(
        dataset=dataset or coreset.source,
        method="random",
        built_by=coreset.method,
        elsewhere=network is not None and is_elsewhere(coreset, network_for(coreset, network)),
        network=network or (str(coreset.network) if coreset.network else "convnet"),
        ipc=max(1, round(coreset.images_per_class)),
        construction={"weights": coreset.configuration.get("settings", {}).get("weights", "full")},
        calibration=calibration,
        **settings,
    )
    plan = replace(plan, control_draws=controls)
    require_listed_shape(coreset, plan.dataset)
    if corruption is not None:
        CORRUPTIONS[corruption.replace("-", "_")]
    for written in (out, predictions):
        if written is not None:
            require_writable(written, coreset_file)
    began = time.monotonic()
    data = load_dataset(plan.dataset, data_dir)
    if corruption is not None:
        test = corrupted_split(data.test, corruption, severity)
        data = replace(data, test=test, transform=data.transform_source)
    coreset = whole_coreset(coreset, data, data_dir)
    trained = None if experts is None else load_experts(experts)
    if trained is not None:
        data = data if trained.guarantee is None else data.publicly_normalised()
        require_experts_for(trained, data)
    stages = judging_stages(plan, data)
    with threads_for(data.shape), Job(place.progress, "evaluating the coreset", stages) as job:
        place = replace(place, progress=job)
        with job.stage("posterior"):
            report = judge(plan, coreset, data, trained, place, network, known)
        control = None
        if controls:
            with job.stage("control"):
                control = judge_control(plan, coreset.network, data, trained, place, network, known)
    seconds = {"evaluate": time.monotonic() - began}
    metrics = metrics_document(replace(plan, method=coreset.method), coreset, report, control, seconds)
    if corruption is not None:
        metrics |= {"corruption": corruption, "severity": severity}
    if predictions is not None and report.predictions is not None:
        report.predictions.save(predictions)
    if out is not None:
        write_json(out, metrics)
    return metrics


def judging_stages(plan: Plan, data: Dataset) -> list[Stage]:
    """Coreset and control; their work is counted in images that pass the network."""
    points, sampling = plan.construction.ipc * len(data.classes), plan.sampling
    predicted = len(data.test) + min(plan.calibration, len(data.train))
    work = sampling.chains * (sampling.steps * points + PASS_WITHOUT_GRADIENT * sampling.samples * predicted)
    draws, tasks = plan.control_draws, TASKS_OF_JUDGING + (plan.calibration > 0)
    control = [Stage("control", draws * work, draws * tasks)] if draws else []
    return [Stage("posterior", work, tasks), *control]


def judge(
    plan: Plan,
    coreset: Coreset,
    data: Dataset,
    experts: Experts | None,
    place: Workplace,
    network: str | None = None,
    reference: Predictions | None = None,
) -> EvaluationReport:
    """Sample the coreset's posterior as the plan has it and score it on the test data."""
    return evaluate(
        sample_plan(plan, coreset, data, experts, place, network),
        data.test,
        reference=reference,
        calibration=data.train if plan.calibration else None,
        calibration_images=plan.calibration,
    )


def sample_plan(
    plan: Plan,
    coreset: Coreset,
    data: Dataset,
    experts: Experts | None,
    place: Workplace,
    network: str | None = None,
) -> PosteriorSamples:
    """The coreset's posterior, sampled as the plan has it; its chains in groups, where there are several workers.

    A group has a seed of its own. Chains that start from experts stay together, so that each has an expert of its own.
    """
    require_same_shape(coreset, data)
    groups = 1 if plan.protocol == "expert" else min(place.workers, plan.sampling.chains)
    if groups == 1:
        return _sampled(coreset, plan.protocol, network, plan.sampling, experts, place)
    began = time.perf_counter()
    work = partial(_sampled_elsewhere, coreset, plan.protocol, network, place)
    kept = torch.cat(list(place.mapper(work, chain_groups(plan.sampling, groups)))).to(place.device)
    return PosteriorSamples(
        kept,
        Classifier(network_for(coreset, network), plan.sampling.prior_scale),
        plan.protocol,
        plan.sampling,
        time.perf_counter() - began,
        transform=coreset.require_images(),
        backend=place.backend,
        progress=place.progress,
        coreset=coreset,
        again=lambda other: sample_plan(plan, other, data, experts, place, network),
    )


def chain_groups(settings: SamplingSettings, groups: int) -> list[SamplingSettings]:
    """The settings of as many groups of the chains, of sizes that differ by one at most."""
    return [
        replace(
            settings,
            chains=len(range(number, settings.chains, groups)),
            seed=settings.seed if number == 0 else derive_seed(settings.seed, "group of chains", number),
        )
        for number in range(groups)
    ]


def _sampled(
    coreset: Coreset,
    protocol: str,
    network: str | None,
    settings: SamplingSettings,
    experts: Experts | None,
    place: Workplace,
) -> PosteriorSamples:
    return sample_posterior(
        coreset,
        start=protocol,
        network=network,
        experts=experts,
        device=place.device,
        backend=place.backend,
        progress=place.progress,
        **asdict(settings),
    )


def _sampled_elsewhere(
    coreset: Coreset, protocol: str, network: str | None, place: Workplace, settings: SamplingSettings
) -> Tensor:
    """Kept positions (chains, samples, size), on the host."""
    with threads_for(coreset.x.shape[1:]):
        return _sampled(coreset, protocol, network, settings, None, place).parameters.cpu()


def judge_control(
    plan: Plan,
    spec: NetworkSpec | None,
    data: Dataset,
    experts: Experts | None,
    place: Workplace,
    network: str | None = None,
    reference: Predictions | None = None,
) -> EvaluationReport:
    """Random real images, the same number, several draws of them, under the same protocol."""
    draws = (control_coreset(plan.construction, data, spec, draw) for draw in range(plan.control_draws))
    return pooled([judge(plan, control, data, experts, place, network, reference) for control in draws])


def metrics_document(
    plan: Plan,
    coreset: Coreset,
    report: EvaluationReport,
    control: EvaluationReport | None,
    timings: Mapping[str, float],
) -> dict[str, Any]:
    """metrics.json: the coreset's scores, and where there is a control its own beside them, and the gain."""
    return {
        "method": plan.method,
        "labels_learned": coreset.labels_learned,
        "formation": coreset.formation,
        "dataset": plan.dataset,
        "ipc": plan.construction.ipc,
        "network": plan.network,
        **replace(report, control=control).as_json(),
        **({} if coreset.guarantee is None or control is None else {"not_covered": CONTROL_IS_NOT_COVERED}),
        "seconds": sum(timings.values()),
        "timings": dict(timings),
    }


def whole_coreset(coreset: Coreset, data: Dataset, data_dir: str | Path) -> Coreset:
    """The whitening of a compact file is fitted on ``data`` where that is what it was fitted on, else on its source."""
    missing = coreset.transform
    if not isinstance(missing, MissingWhitening):
        return coreset
    return coreset.restored(data if missing.images_in(data) is not None else load_dataset(missing.source, data_dir))
