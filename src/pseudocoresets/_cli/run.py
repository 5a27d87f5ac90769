"""``bpc run``: the whole job."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_metrics, warn_of_chains
from pseudocoresets._io.files import write_json
from pseudocoresets._report import write_report
from pseudocoresets._report.run_folder import ABOUT_FILE
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.sources.experts import ExpertSettings
from pseudocoresets.workflows.plan import Plan, make_plan, parse_options
from pseudocoresets.workflows.provenance import typed_command
from pseudocoresets.workflows.run import folder_for, run_plan


@o.with_settings(experts=ExpertSettings, construction=ConstructionSettings, sampling=SamplingSettings)
def run(
    context: typer.Context,
    given: o.Given,
    dataset: o.DatasetName = "digits",
    method: o.MethodName = None,
    ipc: o.ImagesPerClass = 1,
    network: o.NetworkName = "convnet",
    out: Annotated[
        Path | None, o.option(o.OUTPUT, "--out", help="Run folder; default runs/DATASET-METHOD-ipcN.")
    ] = None,
    experts: o.ExpertsDir = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    protocol: o.Protocol = "cold",
    sampler: o.SamplerName = None,
    calibration: o.Calibration = None,
    expert_count: o.ExpertCount = None,
    method_options: o.MethodOptions = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    force: o.Force = False,
    json: o.AsJson = False,
) -> None:
    """The whole job: experts, coreset, control, posterior, report.

    Example: bpc run --dataset digits --ipc 1 --out runs/demo
    """
    plan = make_plan(
        dataset=dataset,
        method=method,
        network=network,
        ipc=ipc,
        protocol=protocol,
        sampler=sampler,
        preset=preset,
        seed=seed,
        expert_count=expert_count,
        method_options=parse_options(method_options or []),
        calibration=calibration,
        **given,
    )
    folder = out or folder_for(dataset, plan.method, f"ipc{ipc}")
    place = o.place_of(context, device)
    outcome = run_plan(plan, folder, data_dir=data_dir, experts_dir=experts, place=place, force=force)
    finished = datetime.now(UTC).isoformat(sep=" ", timespec="minutes")
    write_json(outcome.folder / ABOUT_FILE, {"command": typed_command(), "finished": finished})
    page = write_report(outcome.folder, data_dir=data_dir)
    warn_of_chains(outcome.metrics)
    if json:
        print_json(outcome.metrics)
        return
    caption = (
        f"{protocol} protocol, {plan.sampling.sampler}, {plan.sampling.chains} chains, "
        f"temperature {plan.sampling.temperature:g}; "
        f"control: {plan.control_draws} draws of real images. {outcome.metrics['seconds']:.0f} s in all."
    )
    print_metrics(f"{dataset}, {ipc} image(s) per class", outcome.metrics, caption)
    typer.echo(f"Report: {page}\n\nNext:")
    for command, purpose in next_commands(plan, outcome.folder, experts):
        typer.echo(f"  {command}\n      {purpose}")


def next_commands(plan: Plan, folder: Path, experts: Path | None) -> list[tuple[str, str]]:
    """What one would want after a run, as it is typed, and what it is for."""
    kept = experts or folder / "experts"
    beside = [name for name in (plan.method, "wasserstein", "random") if name != plan.method]
    methods = ",".join([plan.method, *beside])
    compare = ["bpc", "compare", "--dataset", plan.dataset, "--ipc", str(plan.construction.ipc), "--methods", methods]
    if plan.needs_experts():
        compare += ["--experts", str(kept)]
    return [
        (shlex.join(["bpc", "evaluate", str(folder), "--protocol", "point"]), "train one network on the coreset"),
        (shlex.join(compare), "other methods beside this one"),
        (shlex.join(["bpc", "share", str(folder), "--out", f"{folder}-shared"]), "a folder to publish, with its card"),
    ]
