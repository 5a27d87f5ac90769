"""``bpc evaluate``: a coreset file under a protocol."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import metric_cells, metric_columns, print_json, print_table
from pseudocoresets._io.files import require_writable, write_json
from pseudocoresets.core.devices import fit_threads, resolve_device
from pseudocoresets.core.progress import for_stream
from pseudocoresets.coreset import Coreset, require_same_shape
from pseudocoresets.data import FOLDER_PREFIX, Dataset, find_entry, load_dataset
from pseudocoresets.data.restoring import MissingWhitening
from pseudocoresets.sources.experts import load_experts
from pseudocoresets.workflows.plan import make_plan
from pseudocoresets.workflows.run import judge, judge_control, metrics_document


def evaluate(
    coreset_file: Annotated[Path, typer.Argument(help="Coreset file.")],
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Default: the one the coreset was made from.")
    ] = None,
    protocol: o.Protocol = "cold",
    sampler: o.SamplerName = None,
    network: Annotated[
        str | None, typer.Option("--network", help="Default: the one the coreset was made with.")
    ] = None,
    experts: o.ExpertsDir = None,
    chains: o.Chains = None,
    sampling_steps: o.SamplingSteps = None,
    sampling_step_size: o.SamplingStepSize = None,
    schedule: o.ScheduleName = None,
    samples: o.Samples = None,
    temperature: o.Temperature = None,
    prior_scale: o.PriorScale = None,
    mixed_kinds: o.MixedKinds = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    out: Annotated[Path | None, typer.Option("--out", help="Also write the metrics to this JSON file.")] = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """A coreset file under a protocol, beside its control of random real images.

    Example: bpc evaluate c.safetensors --protocol cold --json
    """
    coreset = Coreset.load(coreset_file)
    plan = make_plan(
        dataset=dataset or coreset.source,
        method="random",
        network=network or (str(coreset.network) if coreset.network else "convnet"),
        ipc=max(1, round(coreset.images_per_class)),
        protocol=protocol,
        sampler=sampler,
        preset=preset,
        seed=seed,
        construction={"weights": coreset.configuration.get("settings", {}).get("weights", "full")},
        sampling=o.sampling(
            chains, sampling_steps, sampling_step_size, schedule, samples, temperature, prior_scale, mixed_kinds
        ),
    )
    if not plan.dataset.startswith(FOLDER_PREFIX):
        require_same_shape(coreset, find_entry(plan.dataset))  # before anything is fetched
    if out is not None:
        require_writable(out)
    began = time.monotonic()
    data = load_dataset(plan.dataset, data_dir)
    fit_threads(data.shape)
    coreset = _whole(coreset, data, data_dir)
    trained = None if experts is None else load_experts(experts)
    where = resolve_device(device)
    progress = for_stream()
    report = judge(coreset, data, protocol, plan.sampling, trained, where, progress, network)
    control = judge_control(plan, data, coreset.network, trained, where, progress, network)
    metrics = metrics_document(
        replace(plan, method=coreset.method), report, control, {"evaluate": time.monotonic() - began}
    )
    if out is not None:
        write_json(out, metrics)
    if json:
        print_json(metrics)
    else:
        rows = [
            ["random real images (control)", *metric_cells(metrics["control"])],
            [f"{coreset.method} coreset", *metric_cells(metrics)],
        ]
        print_table(f"{plan.dataset}, {protocol} protocol", ["", *metric_columns()], rows)


def _whole(coreset: Coreset, data: Dataset, data_dir: Path) -> Coreset:
    """The whitening of a compact file is fitted on ``data`` where that is what it was fitted on, else on its source."""
    missing = coreset.transform
    if not isinstance(missing, MissingWhitening):
        return coreset
    return coreset.restored(data if missing.images_in(data) is not None else load_dataset(missing.source, data_dir))
