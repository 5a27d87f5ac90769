"""``bpc construct``: one coreset by one method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets import presets
from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import echo_guarantee, print_json, with_guarantee
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS
from pseudocoresets.construction.privacy import private_settings
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.coreset import Coreset
from pseudocoresets.sources.experts import load_experts
from pseudocoresets.workflows.construct import construct_file
from pseudocoresets.workflows.plan import budget_of, make_plan, parse_options


@o.with_settings(construction=ConstructionSettings)
def construct(
    context: typer.Context,
    given: o.Given,
    out: Annotated[Path, o.option(o.OUTPUT, "--out", help="Coreset file to write.")],
    experts: Annotated[
        Path | None, o.option(o.EXPERTS, "--experts", help="Folder of expert trajectories; bptt and random need none.")
    ] = None,
    dataset: o.DatasetName = "digits",
    method: o.MethodName = None,
    ipc: o.ImagesPerClass = 1,
    network: Annotated[
        str | None,
        o.option(o.METHOD, "--network", help="Network; default: that of the experts, or convnet without any."),
    ] = None,
    data_dir: o.DataDir = Path("data"),
    data_from: Annotated[
        Path | None,
        o.option(
            o.DATA,
            "--data-from",
            help="Coreset file whose images stand for the data, which are not read; a private one passes its "
            "guarantee on.",
        ),
    ] = None,
    preset: o.PresetName = "quick",
    method_options: o.MethodOptions = None,
    epsilon: o.Epsilon = None,
    delta: o.Delta = None,
    initial: Annotated[
        Path | None, o.option(o.CONSTRUCTION, "--initial", help="Coreset file to continue from.")
    ] = None,
    checkpoint_seconds: o.CheckpointSeconds = CHECKPOINT_SECONDS,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    force: o.Force = False,
    json: o.AsJson = False,
) -> None:
    """One coreset by one method; killed and started again, it goes on from its last checkpoint.

    With --epsilon the method dm reads the data once, with noise: the coreset is differentially private.

    Example: bpc construct --dataset digits --ipc 1 --experts experts/digits --out c.safetensors
    """
    budget = budget_of(epsilon, delta)
    made_from = None if data_from is None else Coreset.load(data_from)
    private = budget is not None or (experts is not None and load_experts(experts).guarantee is not None)
    plan = make_plan(
        dataset=dataset if made_from is None else made_from.source,
        method=method,
        network=network or "convnet",
        ipc=ipc,
        preset=presets.preset(preset, presets.NO_DATASET, ipc) if private or made_from is not None else preset,
        seed=seed,
        method_options=parse_options(method_options or []),
        construction=(private_settings(budget) if private else {}) | given["construction"],
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
        privacy=budget,
        made_from=made_from,
    )
    if json:
        last = made.history[-1] if made.history else None
        facts = {"coreset": str(out), "points": len(made.coreset), "last": last}
        print_json(facts | with_guarantee(made.coreset.guarantee))
    else:
        typer.echo(f"{len(made.coreset)} points for {made.coreset.data_size:,} in {out}")
        echo_guarantee(made.coreset.guarantee)
