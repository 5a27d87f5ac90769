"""``bpc compare``: several methods at one cell, with the control, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import for_stream
from pseudocoresets.workflows.compare import COLUMNS, run_comparison
from pseudocoresets.workflows.plan import make_plan


def compare(
    methods: Annotated[str, typer.Option("--methods", help="Methods, separated by commas.")] = "cd,random",
    dataset: o.DatasetName = "digits",
    ipc: o.ImagesPerClass = 1,
    network: o.NetworkName = "convnet",
    out: Annotated[Path | None, typer.Option("--out", help="Folder; default runs/compare-DATASET-ipcN.")] = None,
    experts: o.ExpertsDir = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    protocol: o.Protocol = "cold",
    sampler: o.SamplerName = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Constructions of each method, each with its own seed.")] = 1,
    expert_count: o.ExpertCount = None,
    epochs: o.Epochs = None,
    iterations: o.Iterations = None,
    chains: o.Chains = None,
    sampling_steps: o.SamplingSteps = None,
    sampling_step_size: o.SamplingStepSize = None,
    schedule: o.ScheduleName = None,
    samples: o.Samples = None,
    temperature: o.Temperature = None,
    construction_temperature: o.ConstructionTemperature = None,
    prior_scale: o.PriorScale = None,
    mixed_kinds: o.MixedKinds = None,
    weights: o.Weights = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """Several methods at one cell on shared experts, with the control and the gain over it.

    Finished cells are kept in the folder and not computed again; a method that fails is reported in the table.

    Example: bpc compare --dataset digits --ipc 1 --methods cd,random --json
    """
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names or seeds < 1:
        raise InputError("Name at least one method and ask for at least one seed.")
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
            experts=o.given(epochs=epochs),
            construction=o.given(iterations=iterations)
            | o.posterior(temperature, construction_temperature, prior_scale, weights, mixed_kinds),
            sampling=o.sampling(
                chains, sampling_steps, sampling_step_size, schedule, samples, temperature, prior_scale, mixed_kinds
            ),
        )
        for name in names
    }
    folder = out or Path("runs") / f"compare-{dataset.replace(':', '-').replace('/', '-')}-ipc{ipc}"
    comparison = run_comparison(
        plans,
        range(seed, seed + seeds),
        folder,
        data_dir=data_dir,
        experts_dir=experts,
        device=device,
        progress=for_stream(),
    )
    if json:
        print_json(comparison.as_json())
    else:
        rows = [row.cells() for row in comparison.rows]
        print_table(comparison.title, COLUMNS, rows, "\n".join(comparison.notes))
        typer.echo(f"Saved: {folder / 'comparison.json'}, {folder / 'comparison.md'}")
