"""``bpc experts``: train and store trajectories."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets import presets
from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import echo_guarantee, print_json, with_guarantee
from pseudocoresets._io.files import require_writable_folder
from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.settings import SCALE
from pseudocoresets.data import load_dataset
from pseudocoresets.models.networks import require_network
from pseudocoresets.sources.experts import ExpertSettings, train_experts
from pseudocoresets.workflows.estimate import require_feasible_experts
from pseudocoresets.workflows.plan import budget_of, expert_settings, require_dataset
from pseudocoresets.workflows.run import BLOCK, ExpertBlocks, spread_experts


@o.with_settings(experts=ExpertSettings)
def experts(
    context: typer.Context,
    given: o.Given,
    dataset: o.DatasetName = "digits",
    network: o.NetworkName = "convnet",
    out: Annotated[Path, o.option(o.OUTPUT, "--out", "--experts", help="Folder to create, add to or resume.")] = Path(
        "experts"
    ),
    count: Annotated[
        int | None,
        o.option(o.EXPERTS, "--expert-count", "--count", help="Experts to have in the end.", min=1, max=1_000_000),
    ] = None,
    population: Annotated[
        int | None, o.option(o.EXPERTS, "--population", help="Experts trained side by side.", min=1, max=100_000)
    ] = None,
    epsilon: o.Epsilon = None,
    delta: o.Delta = None,
    clipping: Annotated[
        float,
        o.option(
            o.PRIVACY,
            "--clipping",
            help="Norm of the gradient of one example in DP-SGD.",
            min=SCALE.low,
            max=SCALE.high,
        ),
    ] = 1.0,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    seed: o.Seed = 0,
    devices: o.Devices = "auto",
    ray: o.RayAddress = None,
    json: o.AsJson = False,
) -> None:
    """Train and store expert trajectories; those already in the folder are kept.

    Several --devices, or the machines of --ray, share them out. With --epsilon they are trained by DP-SGD, one after
    another on the first device, and share that budget of differential privacy.

    Example: bpc experts --dataset digits --count 10 --out experts/digits
    """
    budget = budget_of(epsilon, delta)
    require_dataset(dataset)
    require_network(network)
    chosen = presets.preset(preset, dataset if budget is None else presets.NO_DATASET)
    settings = expert_settings(chosen, {**given["experts"], "seed": seed})
    require_writable_folder(out)
    data = load_dataset(dataset, data_dir)
    data = data if budget is None else data.publicly_normalised()
    count = chosen.expert_count if count is None else count
    with o.workforce_of(context, devices, ray) as (place, mapper), threads_for(data.shape):
        require_feasible_experts(network, count, settings.epochs, data, out, place.device)
        if budget is None:
            read, written = data_dir.absolute(), out.absolute()
            train = ExpertBlocks(dataset, read, network, settings, written, place, population)
            spread_experts(train, dataset, count, mapper, place.progress, population or BLOCK)
        trained = train_experts(
            data,
            network,
            count,
            out=out,
            population=population,
            device=place.device,
            backend=place.backend,
            progress=place.progress,
            privacy=budget,
            clipping=clipping,
            **asdict(settings),
        )
    size = trained.network.size
    if json:
        facts = {"folder": str(out), "experts": len(trained), "epochs": trained.epochs, "parameters": size}
        print_json(facts | with_guarantee(trained.guarantee))
    else:
        typer.echo(f"{len(trained)} experts of {trained.epochs} epochs, {size:,} parameters, in {out}")
        echo_guarantee(trained.guarantee)
