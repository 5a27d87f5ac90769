"""``bpc export``: a coreset of rows for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json

FORMATS = ("csv", "parquet", "stan", "numpyro", "pymc", "sklearn")


def export(
    coreset_file: Annotated[Path, typer.Argument(help="A coreset file of rows.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help=f"{', '.join(FORMATS)}.")] = "csv",
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write the data; beside the coreset file.", show_default=False)
    ] = None,
    json: o.AsJson = False,
) -> None:
    """Write a coreset of rows as CSV, Parquet or Stan's JSON, with a program that fits it elsewhere.

    The data have a column 'weight'. 'stan' writes JSON and a Stan program, 'numpyro', 'pymc' and 'sklearn' write CSV
    and a Python program that fits it with its weights.

    Example: bpc export runs/posterior-wine/coresets/moments-20-seed0.safetensors --to csv
    """
    from pseudocoresets._io.files import require_writable, write_text
    from pseudocoresets.core.errors import InputError
    from pseudocoresets.coreset import Coreset

    if to not in FORMATS:
        raise InputError(f"There is no export to '{to}'; choose {', '.join(FORMATS)}.")
    suffix = {"parquet": ".parquet", "stan": ".json"}.get(to, ".csv")
    data = coreset_file.with_suffix(suffix) if out is None else out
    program = None if to in ("csv", "parquet") else data.with_suffix(".stan" if to == "stan" else f".{to}.py")
    for path in filter(None, (data, program)):
        require_writable(path)
    coreset = Coreset.load(coreset_file)
    text = None if program is None else coreset.program(to, data.name)
    {".parquet": coreset.to_parquet, ".json": coreset.to_stan, ".csv": coreset.to_csv}[suffix](data)
    if program is not None and text is not None:
        write_text(program, text)
    written = [str(path) for path in (data, program) if path is not None]
    if json:
        print_json({"data": written[0], "program": written[1] if program else None, "rows": len(coreset)})
    else:
        typer.echo(f"Wrote {' and '.join(written)}")
