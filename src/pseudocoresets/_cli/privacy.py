"""``bpc privacy``: what a coreset gives away of the data that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets.core.text import printable
from pseudocoresets.inference.settings import SamplingSettings

privacy = typer.Typer(no_args_is_help=True, add_completion=False)


@privacy.callback()
def _group() -> None:
    """What a coreset gives away of its data: neighbours, membership inference, start images."""


@privacy.command("audit")
@o.with_settings(sampling=SamplingSettings)
def audit(
    context: typer.Context,
    given: o.Given,
    coreset_file: o.CoresetOrRun,
    dataset: o.CoresetDataset = None,
    shadows: Annotated[
        int | None,
        o.option(
            o.METHOD,
            "--shadows",
            help="Coresets to make from halves of the data for the attack LiRA, an even number from 6 on.",
            max=100_000,
        ),
    ] = None,
    images: Annotated[
        int,
        o.option(
            o.METHOD,
            "--images",
            help="Training images, and as many test images, that the attacks ask about.",
            min=1,
            max=10_000_000,
        ),
    ] = 1000,
    protocol: Annotated[str, o.option(o.SAMPLING, "--protocol", help="cold or point.")] = "cold",
    sampler: o.SamplerName = None,
    network: o.CoresetNetwork = None,
    experts: Annotated[
        Path | None,
        o.option(
            o.EXPERTS,
            "--experts",
            help="Folder of the experts that the coreset was made with; default: those of the run.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        o.option(
            o.EXPERTS,
            "--epochs",
            help="Of the training on all data where no experts are named; default: the preset's.",
            min=1,
            max=1_000_000,
        ),
    ] = None,
    data_dir: o.DataDir = Path("data"),
    preset: o.PresetName = "quick",
    out: Annotated[
        Path | None,
        o.option(
            o.OUTPUT,
            "--out",
            help="Folder for figures, picture, page and shadows. Default: FILE.privacy, or privacy in the run.",
        ),
    ] = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """Attack a coreset file, beside random real images and training on all data; shadows that are done are kept.

    Example: bpc privacy audit c.safetensors --shadows 16
    """
    from pseudocoresets._report.page import REPORT_FILE, write_report
    from pseudocoresets._report.privacy import write_audit_page
    from pseudocoresets.privacy.report import ATTACK_COLUMNS, POINT_COLUMNS, attack_rows, point_rows
    from pseudocoresets.workflows.audit import audit_file, audit_folder

    folder = audit_folder(coreset_file) if out is None else out
    document = audit_file(
        coreset_file,
        o.place_of(context, device),
        dataset=dataset,
        network=network,
        experts=experts,
        epochs=epochs,
        data_dir=data_dir,
        out=folder,
        shadows=shadows,
        images=images,
        protocol=protocol,
        preset=preset,
        seed=seed,
        sampling=given["sampling"] | ({} if sampler is None else {"sampler": sampler}),
    ).as_json()
    page = write_audit_page(folder)
    if out is None and (coreset_file / REPORT_FILE).is_file():
        page = write_report(coreset_file, data_dir=data_dir)
    if json:
        print_json(document | {"page": str(page)})
        return
    for finding in document["findings"]:
        typer.echo(f"- {printable(finding)}")
    typer.echo()
    print_table("Who was in the training data?", ATTACK_COLUMNS, attack_rows(document))
    print_table("Points and training images", POINT_COLUMNS, point_rows(document))
    typer.echo(f"Page: {page}")
