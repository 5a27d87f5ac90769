"""``bpc posterior``: coresets measured against a posterior that is known."""

from __future__ import annotations

import math
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
from pseudocoresets.data.tables import MODEL_NAMES, load_posterior_data
from pseudocoresets.workflows.parallel import cores
from pseudocoresets.workflows.study import COLUMNS, run_study

SMALL_DATA = 200_000
"""Points times parameters; below, the work is in small products that one thread does best."""
LARGEST_SIZE = 1_000_000


def posterior(
    data: Annotated[
        str,
        typer.Option("--data", help="breast-cancer, wine, diabetes, digits, synthetic, or a .csv or .parquet file."),
    ] = "breast-cancer",
    model: Annotated[str, typer.Option("--model", help=f"auto, {', '.join(MODEL_NAMES)}.")] = "auto",
    target: Annotated[str | None, typer.Option("--target", help="Target column of a file.")] = None,
    event: Annotated[
        str | None, typer.Option("--event", help="Column of a file that is 1 where a survival time ended in the event.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Column of a file with the groups of rows.")] = None,
    formula: Annotated[
        str | None, typer.Option("--formula", help='Target and features of a file in one: "y ~ x + C(z)".')
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas.")
    ] = "cd,moments,gaussian-psvi,uniform,frank-wolfe,giga,sparse-vi",
    sizes: Annotated[str, typer.Option("--sizes", help="Coreset sizes, separated by commas.")] = "10,30,100",
    points: Annotated[int, typer.Option("--points", max=100_000_000, help="Number of synthetic data.")] = 10000,
    dimension: Annotated[int, typer.Option("--dimension", max=100_000, help="Number of synthetic features.")] = 10,
    prior_scale: Annotated[
        float, typer.Option("--prior-scale", min=1e-9, max=1e9, help="Standard deviation of the Gaussian prior.")
    ] = 1.0,
    draws: Annotated[
        int, typer.Option("--draws", max=10_000_000, help="NUTS draws of each of the four chains.")
    ] = 1000,
    seeds: Annotated[
        int, typer.Option("--seeds", max=10_000, help="Constructions of each coreset, each with its own seed.")
    ] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder; default runs/posterior-DATA.")] = None,
    cache: Annotated[Path, typer.Option("--cache", help="Folder of reference posteriors.")] = Path(".cache/posterior"),
    demo: Annotated[bool, typer.Option("--demo", help="A small study: some 20 seconds on two cores.")] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, max=1024, help="Processes; default: one per core for small data.")
    ] = None,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Build coresets for a model whose posterior is known and measure their distance to it.

    Finished coresets are kept in the folder and not computed again; a method that fails is reported in the table, and
    the status is then 3.

    Example: bpc posterior --data wine --methods moments,giga,uniform --sizes 5,20,50
    """
    if demo:
        methods, sizes, draws, data = "cd,moments,giga,uniform", "5,20", 300, "diabetes"
    for folder in (cache, out or Path("runs")):
        require_writable_folder(folder)
    loaded = load_posterior_data(data, model, target, points, dimension, prior_scale, seed, event, group, formula)
    names = o.words(methods)
    if seeds < 1 or draws < 4:
        raise InputError("Ask for at least one seed and four draws.")
    wanted, shape = range(seed, seed + seeds), (len(loaded.rows), loaded.model.size)
    jobs = jobs or (cores() if math.prod(shape) <= SMALL_DATA else 1)
    folder = out or Path("runs") / f"posterior-{loaded.name.replace('.', '-')}"
    with only_writer(folder), threads_for(shape, SMALL_DATA):
        study = run_study(
            loaded,
            names,
            parse_sizes(sizes),
            wanted,
            draws,
            cache=cache,
            progress=for_stream(),
            folder=folder,
            jobs=jobs,
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
        raise InputError(f"A coreset (--sizes) has at most {LARGEST_SIZE:,} points; got {sizes[-1]:.4g}.")
    return sizes
