"""``bpc experts``: train and store trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json
from pseudocoresets.core.devices import fit_threads
from pseudocoresets.core.progress import for_stream
from pseudocoresets.data import load_dataset
from pseudocoresets.models.networks import NETWORKS, parse_name
from pseudocoresets.sources.experts import train_experts
from pseudocoresets.workflows.plan import known_dataset
from pseudocoresets.workflows.presets import preset_for


def experts(
    dataset: o.DatasetName = "digits",
    network: o.NetworkName = "convnet",
    out: Annotated[Path, typer.Option("--out", "--experts", help="Folder to create, add to or resume.")] = Path(
        "experts"
    ),
    count: Annotated[int | None, typer.Option("--expert-count", "--count", help="Experts to have in the end.")] = None,
    epochs: o.Epochs = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Learning rate of SGD.")] = None,
    momentum: Annotated[float | None, typer.Option("--momentum")] = None,
    population: Annotated[int | None, typer.Option("--population", help="Experts trained side by side.")] = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    seed: o.Seed = 0,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """Train and store expert trajectories; those already in the folder are kept.

    Example: bpc experts --dataset digits --count 10 --out experts/digits
    """
    known_dataset(dataset)
    NETWORKS[parse_name(network, "network")[0]]
    chosen = preset_for(preset, dataset, ipc=1)
    settings = {
        **chosen.experts,
        **o.given(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, momentum=momentum),
    }
    data = load_dataset(dataset, data_dir)
    fit_threads(data.shape)
    trained = train_experts(
        data,
        network,
        chosen.expert_count if count is None else count,
        out=out,
        population=population,
        seed=seed,
        device=device,
        progress=for_stream(),
        **settings,
    )
    summary = {
        "folder": str(out),
        "experts": len(trained),
        "epochs": trained.epochs,
        "parameters": trained.network.size,
    }
    if json:
        print_json(summary)
    else:
        typer.echo(f"{len(trained)} experts of {trained.epochs} epochs, {trained.network.size:,} parameters, in {out}")
