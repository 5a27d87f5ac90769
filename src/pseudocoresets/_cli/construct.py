"""``bpc construct``: one coreset by one method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.workflows.construct import construct_file
from pseudocoresets.workflows.plan import make_plan, parse_options


@o.with_settings(construction=ConstructionSettings)
def construct(
    context: typer.Context,
    given: o.Given,
    out: Annotated[Path, typer.Option("--out", help="Coreset file to write.", rich_help_panel=o.OUTPUT)],
    experts: Annotated[
        Path | None,
        typer.Option(
            "--experts", help="Folder of expert trajectories; bptt and random need none.", rich_help_panel=o.EXPERTS
        ),
    ] = None,
    dataset: o.DatasetName = "digits",
    method: o.MethodName = None,
    ipc: o.ImagesPerClass = 1,
    network: Annotated[
        str | None,
        typer.Option(
            "--network", help="Network; default: that of the experts, or convnet without any.", rich_help_panel=o.METHOD
        ),
    ] = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    method_options: o.MethodOptions = None,
    initial: Annotated[
        Path | None, typer.Option("--initial", help="Coreset file to continue from.", rich_help_panel=o.CONSTRUCTION)
    ] = None,
    checkpoint_seconds: o.CheckpointSeconds = CHECKPOINT_SECONDS,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    force: o.Force = False,
    json: o.AsJson = False,
) -> None:
    """One coreset by one method; killed and started again, it goes on from its last checkpoint.

    Example: bpc construct --dataset digits --ipc 1 --experts experts/digits --out c.safetensors
    """
    plan = make_plan(
        dataset=dataset,
        method=method,
        network=network or "convnet",
        ipc=ipc,
        preset=preset,
        seed=seed,
        method_options=parse_options(method_options or []),
        **given,
    )
    made = construct_file(
        plan,
        out,
        o.place_of(context, device),
        experts=experts,
        network=network,
        initial=initial,
        data_dir=data_dir,
        checkpoint_seconds=checkpoint_seconds,
        force=force,
    )
    if json:
        last = made.history[-1] if made.history else None
        print_json({"coreset": str(out), "points": len(made.coreset), "last": last})
    else:
        typer.echo(f"{len(made.coreset)} points for {made.coreset.data_size:,} in {out}")
