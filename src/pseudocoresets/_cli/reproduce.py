"""``bpc reproduce``: the paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets._cli.process import A_PART_FAILED, say
from pseudocoresets._io.files import require_writable_folder
from pseudocoresets._report.reproduction import write_reproduction
from pseudocoresets.core.errors import InputError
from pseudocoresets.workflows.provenance import typed_command
from pseudocoresets.workflows.reproduce.catalogue import TABLES
from pseudocoresets.workflows.reproduce.judge import Order
from pseudocoresets.workflows.reproduce.scale import SMOKE, Scale
from pseudocoresets.workflows.reproduce.schedule import Wanted, compute, estimate, is_done, missing

LIST, PAGE, ALL = "list", "page", "all"


def reproduce(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(help="Tables and figures by name, or all; list says which there are, page writes them again."),
    ],
    out: Annotated[Path, o.option(o.OUTPUT, "--out", help="Folder of the records, tables and page.")] = Path(
        "runs/reproduce"
    ),
    data_dir: o.DataDir = Path("data"),
    experts: Annotated[
        Path | None, o.option(o.EXPERTS, "--experts", help="Folder for folders of experts; default DATA_DIR/experts.")
    ] = None,
    coresets: Annotated[
        Path | None,
        o.option(
            o.METHOD,
            "--coresets",
            help="Judge DATASET-ipcN-VARIANT.safetensors (or METHOD) in this folder instead of new ones.",
        ),
    ] = None,
    seeds: Annotated[int, o.option(o.METHOD, "--seeds", help="Constructions for each cell.", min=1, max=10_000)] = 1,
    devices: o.Devices = "auto",
    ray: o.RayAddress = None,
    budget: Annotated[
        float | None,
        o.option(o.MACHINE, "--budget", help="Seconds: the most valuable cells that fit into them.", min=0, max=1e9),
    ] = None,
    smoke: Annotated[
        bool, o.option(o.METHOD, "--smoke", help="The whole path on the digits in about a minute.")
    ] = False,
    datasets: Annotated[str, o.option(o.DATA, "--datasets", help="Only these, separated by commas.")] = "",
    sizes: Annotated[str, o.option(o.DATA, "--ipc", help="Only these images per class, separated by commas.")] = "",
    variants: Annotated[
        str, o.option(o.METHOD, "--variants", help="Only these: published, best or the name of a method.")
    ] = "",
    protocols: Annotated[str, o.option(o.METHOD, "--protocols", help="Only these: cold, point, expert.")] = "",
    only: Annotated[
        str,
        o.option(
            o.METHOD,
            "--only",
            help="Only these, in this order: VARIANT:IPC, or VARIANT:IPC:SHARE for a share of the preset's iterations.",
        ),
    ] = "",
    expert_count: o.ExpertCount = None,
    expert_epochs: Annotated[
        int | None,
        o.option(o.EXPERTS, "--expert-epochs", help="Epochs of experts; default: the preset's.", min=1, max=1_000_000),
    ] = None,
    iterations: Annotated[
        int | None,
        o.option(
            o.CONSTRUCTION,
            "--iterations",
            help="The most of any construction; default: its preset's.",
            min=1,
            max=10**9,
        ),
    ] = None,
    json: o.AsJson = False,
) -> None:
    """Every table and figure of the paper, ours beside the paper's.

    Cells that the folder holds are not computed again, so that the same command goes on where it was stopped. One JSON
    file for each cell, tables.md, and index.html, which needs nothing else. A cell that fails is named, and the status
    is then 3.

    Example: bpc reproduce list --smoke
    """
    shares = _shares(only)
    sizes_of_work = {"expert_count": expert_count, "expert_epochs": expert_epochs, "iterations": iterations}
    given: dict[str, Any] = {name: value for name, value in sizes_of_work.items() if value is not None}
    settings = replace(SMOKE if smoke else Scale(), shares=shares, **given)
    order = Order(out, data_dir, experts, coresets, settings, typed_command())
    wanted = replace(_wanted(names, datasets, sizes, variants, protocols, seeds), only=list(shares))
    if LIST in names:
        _list(wanted, order, json)
        return
    require_writable_folder(out)
    failed = [] if PAGE in names else _compute(context, wanted, order, devices, ray, budget)
    page = write_reproduction(out, settings)
    say("".join(f"{failure}\n" for failure in failed) + f"Saved: {out / 'tables.md'}, {page}")
    if failed:
        raise typer.Exit(A_PART_FAILED)


def _shares(only: str) -> dict[tuple[str, int], float]:
    """``dm:10,dsa:10:0.3`` as shares of iterations by variant and images per class, in their order."""
    found: dict[tuple[str, int], float] = {}
    for word in o.words(only):
        variant, ipc, share = [*word.split(":"), "1"][:3] if word.count(":") in (1, 2) else ("", "", "")
        try:
            found[variant, int(ipc)] = float(share)
        except ValueError:
            raise InputError(
                f"--only takes VARIANT:IPC:SHARE, such as dsa:10:0.3, or VARIANT:IPC; got '{word}'."
            ) from None
        if not 0 < found[variant, int(ipc)] <= 1:
            raise InputError(f"A share of the iterations is above 0 and at most 1; got '{word}'.")
    return found


def _wanted(names: list[str], datasets: str, sizes: str, variants: str, protocols: str, seeds: int) -> Wanted:
    tables = [] if {ALL, LIST, PAGE} & set(names) else names
    whole = [word for word in o.words(sizes) if not word.isdecimal()]
    if whole:
        raise InputError(f"Images per class are whole numbers, separated by commas; got '{whole[0]}'.")
    return Wanted(
        tables, o.words(datasets), [int(word) for word in o.words(sizes)], o.words(variants), o.words(protocols), seeds
    )


def _compute(
    context: typer.Context, wanted: Wanted, order: Order, devices: str, ray: str | None, budget: float | None
) -> list[str]:
    """What failed, each as a sentence."""
    cells = [cell for cell in wanted.cells(order) if missing(cell, order) is None]
    if not cells:
        raise InputError("None of the cells asked for can be computed here; 'bpc reproduce list' says what is missing.")
    with o.workforce_of(context, devices, ray) as (place, mapper):
        outcomes = list(compute(cells, order, place, budget, mapper))
    say(f"{len(outcomes)} of {len(cells)} cells are there.")
    return [f"{each.cell} failed: {each.failure}" for each in outcomes if each.failure is not None]


def _list(wanted: Wanted, order: Order, json: bool) -> None:
    """Every table and figure: its cells, what is done and missing, and what the rest would take."""
    rows: list[dict[str, Any]] = []
    for name, table in TABLES.items():
        cells = replace(wanted, tables=[name]).cells(order)
        absent = {why for cell in cells if (why := missing(cell, order)) is not None}
        open_cells = [cell for cell in cells if missing(cell, order) is None and not is_done(cell, order)]
        rows.append(
            {
                "name": name,
                "title": table.title,
                "cells": len(cells),
                "done": sum(is_done(cell, order) for cell in cells),
                "possible": len(open_cells),
                "seconds": round(estimate(open_cells, order)),
                "missing": sorted(absent),
            }
        )
    if json:
        print_json(rows)
        return
    columns = ["", "what", "cells", "done", "can be computed", "about, s"]
    print_table(
        "Tables and figures of the paper",
        columns,
        [[str(row[key]) for key in ("name", "title", "cells", "done", "possible", "seconds")] for row in rows],
        "Seconds are a rough estimate for one H200, of one table alone; tables share coresets and experts.\n"
        + "\n".join(sorted({why for row in rows for why in row["missing"]})),
    )
