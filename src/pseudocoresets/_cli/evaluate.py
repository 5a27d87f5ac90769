"""``bpc evaluate``: a coreset file under a protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_metrics, warn_of_chains
from pseudocoresets.evaluation.report import CONTROL_DRAWS
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.workflows.evaluate import evaluate_file

MOST_CONTROLS = 1000


@o.with_settings(sampling=SamplingSettings)
def evaluate(
    context: typer.Context,
    given: o.Given,
    coreset_file: o.CoresetOrRun,
    dataset: o.CoresetDataset = None,
    protocol: o.Protocol = "cold",
    sampler: o.SamplerName = None,
    network: o.CoresetNetwork = None,
    experts: o.ExpertsDir = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    out: Annotated[Path | None, o.option(o.OUTPUT, "--out", help="Also write the metrics to this JSON file.")] = None,
    corruption: Annotated[
        str | None, o.option(o.DATA, "--corruption", help="Corrupt the test images, for example by gaussian_blur.")
    ] = None,
    severity: Annotated[int, o.option(o.DATA, "--severity", help="Of the corruption, from 1 to 5.", min=1, max=5)] = 3,
    reference: Annotated[
        Path | None,
        o.option(
            o.DATA,
            "--reference",
            help="File of predictions to compare with, such as those of the full data's posterior.",
        ),
    ] = None,
    predictions: Annotated[
        Path | None, o.option(o.OUTPUT, "--predictions", help="Also write the average prediction to this file.")
    ] = None,
    controls: Annotated[
        int,
        o.option(
            o.DATA,
            "--controls",
            help="Draws of random real images that the control averages; 0 leaves it out.",
            min=0,
            max=MOST_CONTROLS,
        ),
    ] = CONTROL_DRAWS,
    calibration: o.Calibration = None,
    seed: o.Seed = 0,
    devices: o.Devices = "auto",
    json: o.AsJson = False,
) -> None:
    """A coreset file under a protocol, beside its control of random real images.

    On several devices, each samples some of the chains.

    Example: bpc evaluate c.safetensors --protocol cold --json
    """
    with o.helped_place(context, devices) as place:
        metrics = evaluate_file(
            coreset_file,
            place,
            dataset=dataset,
            network=network,
            experts=experts,
            data_dir=data_dir,
            out=out,
            corruption=corruption,
            severity=severity,
            reference=reference,
            predictions=predictions,
            controls=controls,
            calibration=calibration,
            protocol=protocol,
            sampler=sampler,
            preset=preset,
            seed=seed,
            **given,
        )
    warn_of_chains(metrics)
    if json:
        print_json(metrics)
    else:
        print_metrics(f"{metrics['dataset']}, {protocol} protocol", metrics, metrics.get("not_covered", ""))
