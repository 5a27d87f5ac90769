"""``bpc posterior``: coresets measured against a posterior that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets._io.files import require_writable_folder
from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import for_stream
from pseudocoresets.data.tables import MODEL_NAMES, load_posterior_data
from pseudocoresets.workflows.study import Study, StudyRow, full_predictive, run_study

SMALL_DATA = 200_000
"""Points times parameters; below, the work is in small products that one thread does best."""
LARGEST_SIZE = 1_000_000
COLUMNS = (
    "",
    "KL f||c",
    "KL c||f",
    "mean",
    "sd",
    "MMD",
    "SW",
    "held-out",
    "build s",
    "ms/draw",
    "faster",
)


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
    demo: Annotated[bool, typer.Option("--demo", help="A small study that takes less than a minute.")] = False,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Build coresets for a model whose posterior is known and measure their distance to it.

    Example: bpc posterior --data wine --methods moments,giga,uniform --sizes 5,20,50
    """
    if demo:
        methods, sizes, draws, data = "cd,moments,gaussian-psvi,giga,uniform", "5,20", 300, "diabetes"
    for folder in (cache, out or Path("runs")):
        require_writable_folder(folder)
    loaded = load_posterior_data(data, model, target, points, dimension, prior_scale, seed, event, group, formula)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if seeds < 1 or draws < 4:
        raise InputError("Ask for at least one seed and four draws.")
    wanted = range(seed, seed + seeds)
    with threads_for((len(loaded.rows), loaded.model.size), SMALL_DATA):
        study = run_study(loaded, names, parse_sizes(sizes), wanted, draws, cache=cache, progress=for_stream())
    folder = study.save(out or Path("runs") / f"posterior-{loaded.name.replace('.', '-')}")
    if json:
        print_json(study.as_json() | {"folder": str(folder)})
    else:
        _print(study)
        typer.echo(f"Wrote {folder / 'posterior.json'}, {folder / 'distance.png'} and the coresets.")


def parse_sizes(text: str) -> list[int]:
    """``"10,30"`` as numbers."""
    try:
        sizes = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        raise InputError(f"Sizes are whole numbers separated by commas, such as 10,30,100; got '{text}'.") from None
    if sizes and sizes[-1] > LARGEST_SIZE:
        raise InputError(f"A coreset (--sizes) has at most {LARGEST_SIZE:,} points; got {sizes[-1]:.4g}.")
    return sizes


def _print(study: Study) -> None:
    data, reference, floor = study.data, study.reference, study.noise_floor
    rows = [_cells(study, row) for row in study.rows]
    rows.append(["noise floor", *_numbers(floor), "", f"{1000 * reference.seconds_per_draw:.2f}", "1"])
    fits = "closed form" if reference.exact else "between Gaussian fits"
    caption = (
        "KL of full (f) and coreset (c) both ways, relative errors of mean and sd, maximum mean discrepancy, sliced "
        "Wasserstein distance, held-out log-likelihood, time to build, NUTS time per draw and how much faster that "
        "is than on all data. Noise floor: two independent runs of the reference. "
        f"KL {fits}; reference: {len(reference.draws)} NUTS draws in {reference.seconds:.1f} s, "
        f"R-hat {reference.r_hat:.3f}; "
        f"held-out log-likelihood of the full posterior {full_predictive(data, reference):.4f}."
    )
    title = f"{data.name}: {data.model_name}, n = {len(data.rows)}, {data.model.size} parameters"
    print_table(title, COLUMNS, rows, caption)


def _cells(study: Study, row: StudyRow) -> list[str]:
    name = f"{row.method} {row.size}"
    if row.distances is None:
        return [name, f"failed: {row.failure}", *[""] * (len(COLUMNS) - 2)]
    times = [f"{row.build_seconds:.2f}", f"{1000 * row.seconds_per_draw:.2f}", f"{study.speed_up(row):.1f}x"]
    return [name, *_numbers(row.distances), *times]


def _numbers(distances: object) -> list[str]:
    names = ("kl_full_coreset", "kl_coreset_full", "mean_error", "deviation_error", "mmd", "sliced_wasserstein")
    cells = [f"{getattr(distances, name):.3g}" for name in names]
    held_out = getattr(distances, "held_out_log_likelihood", None)
    return [*cells, "" if held_out is None else f"{held_out:.4f}"]
