"""``bpc posterior``: coresets measured against a posterior that is known."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets._cli.process import A_PART_FAILED
from pseudocoresets._io.files import only_writer, require_writable_folder
from pseudocoresets._report.posterior import write_posterior_page
from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import for_stream
from pseudocoresets.core.text import shortened
from pseudocoresets.data.large import is_large, load_large_data
from pseudocoresets.data.tables import load_posterior_data
from pseudocoresets.models.named import MODELS
from pseudocoresets.workflows.cluster import workforce
from pseudocoresets.workflows.parallel import cores
from pseudocoresets.workflows.study import COLUMNS, run_study

SMALL_DATA = 200_000
"""Points times parameters; below, the work is in small products that one thread does best."""
LARGEST_SIZE = 1_000_000
METHODS, LARGE_METHODS = "cd,moments,gaussian-psvi,uniform,frank-wolfe,giga,sparse-vi", "moments,uniform"
"""By default, of data in memory and of those that are read in parts."""


def posterior(
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="breast-cancer, wine, diabetes, digits, synthetic, a .csv or .parquet file, or a folder of the last.",
        ),
    ] = "breast-cancer",
    model: Annotated[str, typer.Option("--model", help=f"auto, {', '.join(MODELS)}.")] = "auto",
    target: Annotated[str | None, typer.Option("--target", help="Target column of a file.")] = None,
    event: Annotated[
        str | None, typer.Option("--event", help="Column of a file that is 1 where a survival time ended in the event.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Column of a file with the groups of rows.")] = None,
    formula: Annotated[
        str | None, typer.Option("--formula", help='Target and features of a file in one: "y ~ x + C(z)".')
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help=f"Methods, separated by commas; default {METHODS}; in parts {LARGE_METHODS}."),
    ] = None,
    sizes: Annotated[str, typer.Option("--sizes", help="Coreset sizes, separated by commas.")] = "10,30,100",
    points: Annotated[int, typer.Option("--points", min=1, max=100_000_000, help="Number of synthetic data.")] = 10000,
    dimension: Annotated[
        int, typer.Option("--dimension", min=1, max=100_000, help="Number of synthetic features.")
    ] = 10,
    prior_scale: Annotated[
        float, typer.Option("--prior-scale", min=1e-9, max=1e9, help="Standard deviation of the Gaussian prior.")
    ] = 1.0,
    draws: Annotated[
        int, typer.Option("--draws", min=4, max=10_000_000, help="NUTS draws of each of the four chains.")
    ] = 1000,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=10_000, help="Constructions of each coreset, each with its own seed.")
    ] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder; default runs/posterior-DATA.")] = None,
    cache: Annotated[Path, typer.Option("--cache", help="Folder of reference posteriors.")] = Path(".cache/posterior"),
    demo: Annotated[bool, typer.Option("--demo", help="A small study: some 20 seconds on two cores.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, max=1024, help="Processes; default: one per core for small data and for parts."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Read the data in parts on a Ray cluster: HOST:PORT of its head; auto starts one."),
    ] = None,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Build coresets for a model whose posterior is known and measure their distance to it.

    Finished coresets are kept in the folder and not computed again; a method that fails is reported in the table, and
    the status is then 3. A folder of Parquet files, a Parquet file too large for memory, and any with --ray are read in
    parts, and the nearest Gaussian stands for the full posterior.

    Example: bpc posterior --data wine --methods moments,giga,uniform --sizes 5,20,50
    """
    if demo:
        methods, sizes, draws, data = "cd,moments,giga,uniform", "5,20", 300, "diabetes"
    for folder in (cache, out or Path("runs")):
        require_writable_folder(folder)
    with ExitStack() as stack:
        large = ray is not None or is_large(data)
        if large:
            if event or group or formula:
                raise InputError("Data that are read in parts take no --event, --group or --formula.")
            mapper = stack.enter_context(workforce(["cpu"] * (jobs or cores()), ray))
            loaded = load_large_data(data, model, target, prior_scale, seed, mapper, cache.absolute() / "parts")
        else:
            loaded = load_posterior_data(
                data, model, target, points, dimension, prior_scale, seed, event, group, formula
            )
        names = o.words(methods or (LARGE_METHODS if large else METHODS))
        shape = (len(loaded.rows), loaded.model.size)
        folder = out or Path("runs") / f"posterior-{loaded.name.replace('.', '-')}"
        stack.enter_context(only_writer(folder))
        stack.enter_context(threads_for(shape, SMALL_DATA))
        study = run_study(
            loaded,
            names,
            parse_sizes(sizes),
            range(seed, seed + seeds),
            draws,
            cache=cache,
            progress=for_stream(),
            folder=folder,
            jobs=1 if large else jobs or (cores() if math.prod(shape) <= SMALL_DATA else 1),
        )
        study.save(folder)
        page = write_posterior_page(study, folder) if study.coresets else None
    if json:
        print_json(study.as_json() | {"folder": str(folder)})
    else:
        print_table(study.title, COLUMNS, study.cells(), "\n".join(study.notes))
        drawn = "" if page is None else f", {folder / 'distance.png'}, {page} and the coresets"
        typer.echo(f"Wrote {folder / 'posterior.json'}{drawn}.")
    if any(row.failure is not None for row in study.rows):
        raise typer.Exit(A_PART_FAILED)


def parse_sizes(text: str) -> list[int]:
    """``"10,30"`` as numbers."""
    try:
        sizes = sorted({int(part) for part in o.words(text)})
    except ValueError:
        raise InputError(f"Sizes are whole numbers separated by commas, such as 10,30,100; got '{text}'.") from None
    if sizes and sizes[-1] > LARGEST_SIZE:
        raise InputError(f"A coreset (--sizes) has at most {LARGEST_SIZE:,} points; got {shortened(str(sizes[-1]))}.")
    return sizes
