"""``bpc compare``: several methods at one cell, with the control, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets.commands import options as o
from pseudocoresets.commands.output import print_json, print_table
from pseudocoresets.commands.planning import make_plan
from pseudocoresets.compare import Row, run_comparison
from pseudocoresets.errors import InputError
from pseudocoresets.evaluation import METRICS
from pseudocoresets.progress import for_stream


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
    sampler: o.SamplerName = "langevin",
    seeds: Annotated[int, typer.Option("--seeds", help="Constructions of each method, each with its own seed.")] = 1,
    expert_count: o.ExpertCount = None,
    epochs: o.Epochs = None,
    iterations: o.Iterations = None,
    chains: o.Chains = None,
    sampling_steps: o.SamplingSteps = None,
    temperature: o.Temperature = None,
    prior_scale: o.PriorScale = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """Several methods at one cell on shared experts, with the control and the gain over it.

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
            construction=o.given(iterations=iterations),
            sampling=o.given(chains=chains, steps=sampling_steps, temperature=temperature, prior_scale=prior_scale),
        )
        for name in names
    }
    rows = run_comparison(
        plans,
        range(seed, seed + seeds),
        out or Path("runs") / f"compare-{dataset.replace(':', '-').replace('/', '-')}-ipc{ipc}",
        data_dir=data_dir,
        experts_dir=experts,
        device=device,
        progress=for_stream(),
    )
    if json:
        print_json(
            {
                "dataset": dataset,
                "ipc": ipc,
                "network": network,
                "protocol": protocol,
                "rows": [row.as_json() for row in rows],
            }
        )
    else:
        _print_rows(f"{dataset}, {ipc} image(s) per class, {protocol} protocol, {seeds} seed(s)", rows)


def _print_rows(title: str, rows: list[Row]) -> None:
    columns = ["", "accuracy %", "NLL", "ECE", "Brier", "gain %", "paper %", "s/iteration", "seconds", "peak MiB"]
    print_table(
        title, columns, [_cells(row) for row in rows], "Averages over chains and samples; mean ± deviation over seeds."
    )


def _cells(row: Row) -> list[str]:
    if row.metrics is None or row.gain is None:
        return [row.method, f"failed: {row.failure}", *[""] * 8]
    scores = [
        f"{scale * row.metrics[name].mean:.{digits}f} ± {scale * row.metrics[name].std:.{digits}f}"
        for name in METRICS
        for scale, digits in [(100, 1) if name == "accuracy" else (1, 3)]
    ]
    return [
        row.method,
        *scores,
        f"{100 * row.gain['accuracy']:+.1f}",
        _optional(row.paper_accuracy, 100, 1),
        _optional(row.seconds_per_iteration, 1, 3),
        _optional(row.seconds, 1, 0),
        _optional(row.peak_memory, 2**-20, 0),
    ]


def _optional(value: float | None, scale: float, digits: int) -> str:
    return "" if value is None else f"{scale * value:.{digits}f}"
