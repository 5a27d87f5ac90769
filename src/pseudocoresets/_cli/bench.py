"""``bpc bench``: speed and memory here, beside the reference formulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets._cli.process import A_PART_FAILED, say
from pseudocoresets._io.files import require_writable, write_json
from pseudocoresets._io.pictures import save_figure
from pseudocoresets.core.errors import InputError
from pseudocoresets.evaluation.report import method_title
from pseudocoresets.workflows.bench import Measurement, run_bench
from pseudocoresets.workflows.bench_methods import Cost, MethodCost, bench_methods
from pseudocoresets.workflows.bench_networks import NetworkCost, bench_networks
from pseudocoresets.workflows.bench_plot import bench_figure
from pseudocoresets.workflows.cells import as_text
from pseudocoresets.workflows.provenance import provenance, typed_command

Row = TypeVar("Row", Measurement, MethodCost, NetworkCost)
SIZES = "1,10,50"
METHOD_COLUMNS = ("", "ms/update", "peak MB", "published loop ms", "times faster", "its MB", "paper s", "paper GB")
COLUMNS = (
    "",
    "unit",
    "ours",
    "reference",
    "ratio",
    "floor",
    "of floor",
    "host ms",
    "host's share",
    "peak MiB",
    "warm-up s",
)
NETWORK_COLUMNS = ("", "ms", "plain ms", "times faster", "GFLOP", "in proportion ms", "of that", "of today's")
NOTE = (
    "An update is one of the images; each row's sides ran in processes of their own. The paper's seconds are of its "
    "own device and, for gm and dsa, of one network, which serves several updates."
)


def bench(
    context: typer.Context,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Measure these methods, separated by commas, or all, each in its own process."),
    ] = None,
    ipc: Annotated[
        str | None, typer.Option("--ipc", help=f"Images per class for --methods; {SIZES} where none are given.")
    ] = None,
    networks: Annotated[
        bool,
        typer.Option("--networks", help="Measure other networks, HMC, MALA and learned weights beside the plain path."),
    ] = False,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Leave the reference formulation, or with --methods the published loops, out."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Also write the table to this JSON file; of --methods, the plot beside it as PNG."),
    ] = None,
    device: o.Device = "auto",
    json: o.AsJson = False,
) -> None:
    """Speed and memory here, beside the reference formulation, in one run of under four minutes.

    With --methods: memory and seconds per iteration of construction methods, beside their published formulations as
    plain PyTorch loops and the paper's figures, and the plot of both against images per class.

    With --networks: an iteration for other networks and samplers at ten images per class (on a CPU, one), beside the
    plain path, and what the ConvNet's time would be at their arithmetic.

    Example: bpc bench --out bench.json
    """
    if out is not None:
        require_writable(out)
    place = o.place_of(context, device)
    where = place.device
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    if methods is not None:
        precision = o.program_settings(context).precision
        found = bench_methods(o.words(methods), _sizes(ipc or SIZES), where, precision, alone=alone)
        _show_methods(found, name, out, json)
        return
    if networks:
        _show_networks(bench_networks(where, place.backend), name, out, json)
        return
    if ipc is not None:
        raise InputError("--ipc goes with --methods, such as --methods all.")
    rows, document = _gathered(
        run_bench(where, place.backend, alone), lambda row: f"{row.what}: {row.ours:.4g} {row.unit}", name, out
    )
    if json:
        print_json(document)
    else:
        print_table(f"{name}, torch {torch.__version__}", COLUMNS, [_cells(row) for row in rows])


def _gathered(
    found: Iterable[Row], line: Callable[[Row], str], name: str, out: Path | None, **about: str
) -> tuple[list[Row], dict[str, Any]]:
    """All rows and their document, which is written to ``out`` after each; ``line`` says a row on standard error."""
    rows: list[Row] = []
    document: dict[str, Any] = {**provenance(typed_command()), "device": name, **about, "rows": []}
    for row in found:
        rows.append(row)
        document["rows"].append(row.as_json())
        say(line(row))
        if out is not None:
            write_json(out, document)
    return rows, document


def _cells(row: Measurement) -> list[str]:
    reached = None
    if row.floor is not None:
        reached = row.ours / row.floor if row.unit == "images/s" else row.floor / row.ours
    return [
        row.what,
        row.unit,
        f"{row.ours:,.4g}",
        as_text(row.reference, ",.4g"),
        as_text(row.ratio, ".1f", " x"),
        as_text(row.floor, ",.4g"),
        as_text(reached, ".0f", " %", 100),
        as_text(row.host, ",.3g"),
        as_text(row.host_share, ".0f", " %", 100),
        as_text(row.peak_memory, ",.0f", factor=2**-20),
        as_text(row.warm_up_seconds, ".1f"),
    ]


def _show_networks(found: Iterable[NetworkCost], name: str, out: Path | None, json: bool) -> None:
    rows, document = _gathered(found, lambda row: f"{row.case}: {row.ours:.4g} ms, plain {row.plain:.4g} ms", name, out)
    if json:
        print_json(document)
    else:
        title = f"{name}, torch {torch.__version__}: an iteration on {rows[0].images} images"
        print_table(title, NETWORK_COLUMNS, [_network_cells(row) for row in rows])


def _network_cells(row: NetworkCost) -> list[str]:
    return [
        str(row.case),
        f"{row.ours:,.4g}",
        f"{row.plain:,.4g}",
        f"{row.times_faster:.1f} x",
        f"{row.gflop:,.4g}",
        as_text(row.in_proportion, ",.4g"),
        as_text(row.of_proportion, ".2f"),
        as_text(row.of_proportion_today, ".2f"),
    ]


def _show_methods(found: Iterable[MethodCost], name: str, out: Path | None, json: bool) -> None:
    """The efficiency table: a row for each method and size, written after each, and the plot at the end."""
    if out is not None:
        require_writable(out.with_suffix(".png"))

    def line(row: MethodCost) -> str:
        return f"{row.method}, {row.ipc} image(s) per class: {row.failure or _milliseconds(row.ours)}"

    rows, document = _gathered(found, line, name, out, note=NOTE)
    if out is not None:
        save_figure(out.with_suffix(".png"), bench_figure(rows, name))
    if json:
        print_json(document)
    else:
        print_table(f"{name}, torch {torch.__version__}", METHOD_COLUMNS, [_method_cells(row) for row in rows], NOTE)
    if any(row.failure is not None for row in rows):
        raise typer.Exit(A_PART_FAILED)


def _sizes(text: str) -> list[int]:
    try:
        return [int(size) for size in o.words(text)]
    except ValueError:
        raise InputError(f"--ipc takes whole numbers separated by commas, such as {SIZES}; got '{text}'.") from None


def _method_cells(row: MethodCost) -> list[str]:
    title = f"{method_title(row.method, row.labels_learned)}, ipc {row.ipc}"
    if row.ours is None:
        return [title, "failed", *[""] * (len(METHOD_COLUMNS) - 2)]
    return [
        title,
        _milliseconds(row.ours, unit=""),
        _megabytes(row.ours),
        _milliseconds(row.published, unit=""),
        as_text(row.times_faster, ".1f", " x"),
        _megabytes(row.published),
        as_text(row.paper_seconds, "g"),
        as_text(row.paper_memory_gb, ".1f"),
    ]


def _milliseconds(cost: Cost | None, unit: str = " ms") -> str:
    return "" if cost is None else f"{1e3 * cost.seconds:,.4g}{unit}"


def _megabytes(cost: Cost | None) -> str:
    return "" if cost is None else f"{cost.peak_memory / 1e6:,.0f}"
