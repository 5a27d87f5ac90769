"""``bpc share``: a coreset with its card, ready to publish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json


def share(
    coreset_file: Annotated[Path, typer.Argument(help="A coreset file, or a run folder.", show_default=False)],
    out: Annotated[Path, o.option(o.OUTPUT, "--out", help="Folder to write.")] = Path("shared"),
    licence: Annotated[
        str | None, typer.Option("--licence", help="Licence of the data; default: the catalogue's.", show_default=False)
    ] = None,
    json: o.AsJson = False,
) -> None:
    """Write a coreset with its card (what, how made, figures, licence, privacy) as one folder to publish.

    Example: bpc share runs/demo --out digits-coreset
    """
    from pseudocoresets.workflows.share import share as write

    facts = write(coreset_file, out, licence)
    if json:
        print_json(facts)
        return
    typer.echo(f"Wrote {out}: read its README.md before you publish it. Licence of the data: {facts['licence']}.")
    typer.echo(f"To load it from a server: Coreset.load('ADDRESS/coreset.safetensors#sha256={facts['sha256']}')")
