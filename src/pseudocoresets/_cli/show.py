"""``bpc show``: a coreset file as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._io.documents import json_text


def show(
    coreset_file: Annotated[
        Path, typer.Argument(help="A coreset file (safetensors), or a run folder.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write the PNG. Default: beside the coreset file.", show_default=False),
    ] = None,
    data_dir: o.DataDir = Path("data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a line.")] = False,
) -> None:
    """Write a picture of a coreset: one row per class, its name at the side, in true pixel space.

    Example: bpc show c.safetensors --out c.png
    """
    from pseudocoresets._io.files import require_writable
    from pseudocoresets.coreset import Coreset, coreset_path

    coreset_file = coreset_path(coreset_file)
    picture = coreset_file.with_suffix(".png") if out is None else out
    coreset = Coreset.load(coreset_file, data_dir=data_dir)
    require_writable(picture, coreset_file)
    coreset.show(picture)
    if as_json:
        typer.echo(json_text({"picture": str(picture), "images": len(coreset)}))
    else:
        typer.echo(f"Wrote {picture}")
