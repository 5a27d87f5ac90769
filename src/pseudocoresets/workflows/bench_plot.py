"""Memory and time against images per class, as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pseudocoresets._io.files import replacing

if TYPE_CHECKING:
    from pseudocoresets.workflows.bench_methods import MethodCost


def save_bench_plot(rows: Sequence[MethodCost], title: str, path: str | os.PathLike[str]) -> None:
    """Peak memory beside seconds per update; published loops are dashed, the paper's figures dotted."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    memory, seconds = figure.subplots(1, 2)
    for number, name in enumerate(dict.fromkeys(row.method for row in rows)):
        own = [row for row in rows if row.method == name]
        colour = f"C{number % 10}"
        marker = "os^vDP*X"[number // 10 % 8]
        _line(memory, own, lambda row: row.ours and row.ours.peak_memory / 1e9, name, f"{marker}-", colour)
        _line(memory, own, lambda row: row.published and row.published.peak_memory / 1e9, "", f"{marker}--", colour)
        _line(memory, own, lambda row: row.paper_memory_gb, "", f"{marker}:", colour)
        _line(seconds, own, lambda row: row.ours and row.ours.seconds, "", f"{marker}-", colour)
        _line(seconds, own, lambda row: row.published and row.published.seconds, "", f"{marker}--", colour)
        _line(
            seconds,
            own,
            lambda row: row.paper_seconds and row.paper_seconds / row.paper_updates,
            "",
            f"{marker}:",
            colour,
        )
    sizes = sorted({row.ipc for row in rows})
    for axes, quantity in ((memory, "peak memory, GB"), (seconds, "seconds per update of the images")):
        axes.set(xscale="log", yscale="log", xlabel="images per class", ylabel=quantity)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
    figure.legend(loc="outside right center", fontsize=8)
    figure.suptitle(f"{title} (dashed: the published loop here; dotted: the paper's figures, of its own device)")
    with replacing(path) as temporary, temporary.open("wb") as file:
        FigureCanvasAgg(figure).print_png(file)


def _line(axes: Any, rows: Sequence[MethodCost], value: Any, label: str, style: str, colour: str) -> None:
    found = [(row.ipc, value(row)) for row in rows if value(row)]
    if found:
        axes.plot(*zip(*found, strict=True), style, color=colour, label=label or None)
