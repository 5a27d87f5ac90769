"""Memory and time against images per class, as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pseudocoresets.evaluation.report import method_title

if TYPE_CHECKING:
    from pseudocoresets.workflows.bench_methods import Cost, MethodCost

MARKERS = "os^vDP*X"
COLOURS = 10


class Side(NamedTuple):
    """Who was measured, and how that is drawn."""

    cost: Callable[[MethodCost], Cost | None]
    line: str
    fill: str


SIDES = (
    Side(lambda row: row.ours, "-", "full"),
    Side(lambda row: row.published, "--", "none"),
    Side(lambda row: row.paper, ":", "left"),
)
MEANING = "dashed, hollow: the published loop here; dotted, half filled: the paper's figures, of its own device"


def bench_figure(rows: Sequence[MethodCost], title: str) -> Any:
    """Peak memory beside seconds per update, for each method and side."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(12, 5), layout="constrained")
    memory, seconds = figure.subplots(1, 2)
    for number, name in enumerate(dict.fromkeys(row.method for row in rows)):
        own = [row for row in rows if row.method == name]
        look: dict[str, Any] = {"color": f"C{number % COLOURS}", "marker": MARKERS[number // COLOURS % len(MARKERS)]}
        for side in SIDES:
            costs = {row.ipc: cost for row in own if (cost := side.cost(row)) is not None}
            drawn = {**look, "linestyle": side.line, "fillstyle": side.fill}
            label = method_title(name, own[0].labels_learned) if side is SIDES[0] else None
            memory.plot(list(costs), [cost.peak_memory / 1e9 for cost in costs.values()], label=label, **drawn)
            seconds.plot(list(costs), [cost.seconds for cost in costs.values()], **drawn)
    sizes = sorted({row.ipc for row in rows})
    for axes, quantity in ((memory, "peak memory, GB"), (seconds, "seconds per update of the images")):
        axes.set(xscale="log", yscale="log", xlabel="images per class", ylabel=quantity)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
    figure.legend(loc="outside right center", fontsize=8)
    figure.suptitle(f"{title} ({MEANING})", fontsize=10)
    return figure
