"""``bpc bench``: speed and memory here, beside the reference formulation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets._cli.process import say
from pseudocoresets._io.files import require_writable, write_json
from pseudocoresets.workflows.bench import Measurement, run_bench


def bench(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the table to this JSON file.")] = None,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """Speed and memory here, beside the reference formulation, in one run of under four minutes.

    Example: bpc bench --out bench.json
    """
    if out is not None:
        require_writable(out)
    place = o.place_of(context, device)
    where = place.device
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    rows: list[Measurement] = []
    for measurement in run_bench(where, place.backend):
        rows.append(measurement)
        say(f"{measurement.what}: {measurement.ours:.4g} {measurement.unit}")
        if out is not None:
            write_json(out, _document(name, rows))
    if json:
        print_json(_document(name, rows))
    else:
        columns = ["", "unit", "ours", "reference", "ratio", "floor", "of floor", "peak MiB", "warm-up s"]
        print_table(f"{name}, torch {torch.__version__}", columns, [_cells(row) for row in rows])


def _document(name: str, rows: list[Measurement]) -> dict[str, object]:
    return {"device": name, "torch": torch.__version__, "rows": [row.as_json() for row in rows]}


def _cells(row: Measurement) -> list[str]:
    reached = None
    if row.floor is not None:
        reached = row.ours / row.floor if row.unit == "images/s" else row.floor / row.ours
    return [
        row.what,
        row.unit,
        f"{row.ours:,.4g}",
        "" if row.reference is None else f"{row.reference:,.4g}",
        "" if row.ratio is None else f"{row.ratio:.1f} x",
        "" if row.floor is None else f"{row.floor:,.4g}",
        "" if reached is None else f"{100 * reached:.0f} %",
        "" if row.peak_memory is None else f"{row.peak_memory / 2**20:,.0f}",
        "" if row.warm_up_seconds is None else f"{row.warm_up_seconds:.1f}",
    ]
