"""``bpc report``: a run folder as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._io.documents import json_text


def report(
    run_folder: Annotated[Path, typer.Argument(help="A folder that 'bpc run' wrote.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write the page. Default: report.html in the folder.", show_default=False),
    ] = None,
    data_dir: o.DataDir = Path("data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a line.")] = False,
) -> None:
    """Write the report of a run: one HTML file that needs nothing else.

    Example: bpc report runs/demo
    """
    from pseudocoresets._io.files import require_writable
    from pseudocoresets._report import write_report

    if out is not None:
        require_writable(out)
    page = write_report(run_folder, out, data_dir)
    typer.echo(json_text({"report": str(page)}) if as_json else f"Wrote {page}")
