"""``bpc compact``: a coreset file that is small enough to share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json


def compact(
    coreset_file: Annotated[Path, typer.Argument(help="A coreset file (safetensors).", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Where to write the compact file.", show_default=False)],
    data_dir: o.DataDir = Path("data"),
    json: o.AsJson = False,
) -> None:
    """Write a coreset file without whitening matrices and with its images in float16.

    The whitening is fitted again, and checked, where the compact file is used. The data set is read only if the file
    does not say which images its whitening was fitted on.

    Example: bpc compact c.safetensors c.small.safetensors
    """
    from pseudocoresets._io.files import require_writable
    from pseudocoresets.coreset import Coreset
    from pseudocoresets.data import load_dataset

    require_writable(out, coreset_file)
    coreset = Coreset.load(coreset_file)
    before = coreset_file.stat().st_size
    transform = coreset.require_images()
    if transform.kind == "zca" and transform.origin is None:
        coreset = coreset.restored(load_dataset(coreset.source, data_dir))
    coreset.save(out, compact=True)
    after = out.stat().st_size
    if json:
        print_json({"coreset": str(out), "bytes": after, "bytes_before": before})
    else:
        typer.echo(f"Wrote {out}: {after:,} bytes instead of {before:,}")
