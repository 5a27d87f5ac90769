"""``bpc compare``: several methods at one cell, with the control, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets._cli.process import A_PART_FAILED
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.sources.experts import ExpertSettings
from pseudocoresets.workflows.compare import COLUMNS, run_comparison
from pseudocoresets.workflows.plan import make_plan, options_by_method
from pseudocoresets.workflows.run import folder_for


@o.with_settings(experts=ExpertSettings, construction=ConstructionSettings, sampling=SamplingSettings)
def compare(
    context: typer.Context,
    given: o.Given,
    methods: Annotated[str, o.option(o.METHOD, "--methods", help="Methods, separated by commas.")] = "cd,random",
    dataset: o.DatasetName = "digits",
    ipc: o.ImagesPerClass = 1,
    network: o.NetworkName = "convnet",
    out: Annotated[Path | None, o.option(o.OUTPUT, "--out", help="Folder; default runs/compare-DATASET-ipcN.")] = None,
    experts: o.ExpertsDir = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    protocol: o.Protocol = "cold",
    sampler: o.SamplerName = None,
    seeds: Annotated[
        int,
        o.option(o.METHOD, "--seeds", help="Constructions of each method, each with its own seed.", min=1, max=10_000),
    ] = 1,
    expert_count: o.ExpertCount = None,
    method_options: Annotated[
        list[str] | None,
        o.option(o.METHOD, "--set", help="An option of one method (cd.steps=30) or of all that have it (steps=30)."),
    ] = None,
    seed: o.Seed = 0,
    devices: o.Devices = "auto",
    ray: o.RayAddress = None,
    force: o.Force = False,
    json: o.AsJson = False,
) -> None:
    """Several methods at one cell on shared experts, with the control and the gain over it.

    Finished cells are kept in the folder and not computed again; a method that fails is reported in the table, and
    the status is then 3.

    Example: bpc compare --dataset digits --ipc 1 --methods cd,random --json
    """
    names = o.words(methods)
    options = options_by_method(method_options or [], names)
    plans = {
        name: make_plan(
            dataset=dataset,
            method=name,
            network=network,
            ipc=ipc,
            protocol=protocol,
            sampler=sampler,
            preset=preset,
            seed=seed,
            expert_count=expert_count,
            method_options=options[name],
            calibration=0,
            **given,
        )
        for name in names
    }
    folder = out or folder_for(f"compare-{dataset}", f"ipc{ipc}")
    with o.workforce_of(context, devices, ray) as (place, mapper):
        comparison = run_comparison(
            plans,
            range(seed, seed + seeds),
            folder,
            data_dir=data_dir,
            experts_dir=experts,
            place=place,
            force=force,
            mapper=mapper,
        )
    if json:
        print_json(comparison.as_json())
    else:
        rows = [row.cells() for row in comparison.rows]
        print_table(comparison.title, COLUMNS, rows, "\n".join(comparison.notes))
        typer.echo(f"Saved: {folder / 'comparison.json'}, {folder / 'comparison.md'}")
    if any(row.failure is not None for row in comparison.rows):
        raise typer.Exit(A_PART_FAILED)
