"""Figures that the paper reports, means of single runs, to stand beside ours.

``paper_figures.csv`` has every figure of its tables: accuracies in per cent, memory in GB, time in seconds. Names in
brackets are the samplers of its evaluation: "bpc-fkl (hmc)" is the coreset of forward KL, judged by HMC; forward KL
*estimated* by HMC is "fkl by hmc", in the table ``mcmc``. Where a table names no sampler, it is that of the main table.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PAPER_NAMES = {
    "cd": "bpc-cd",
    "fkl": "bpc-fkl (sghmc)",
    "rkl": "bpc-rkl (sghmc)",
    "wasserstein": "bpc-w (sghmc)",
    "herding": "herding",
    "k-center": "k-center",
    "forgetting": "forgetting",
    "dd": "dd",
    "ld": "ld",
    "gm": "gm",
    "dsa": "dsa",
    "dm": "dm",
    "cafe": "cafe",
    "cafe-dsa": "cafe+dsa",
    "kip": "kip",
    "mtt": "mtt",
}
"""Our methods by the name that the tables of accuracies have for them."""
COST_NAMES = PAPER_NAMES | {"fkl-hmc": "fkl by hmc", "fkl-kfl": "fkl by kfl"}
"""Our methods by the name that the tables of memory and time have for them."""
COST_TABLES = ("efficiency", "mcmc")
ACCURACY_TABLES = ("bpc", "coresets", "condensation")
"""The tables over data sets and images per class, of clean test data."""


@dataclass(frozen=True)
class PaperFigure:
    """One number of one table."""

    table: str
    dataset: str
    ipc: int
    method: str
    variant: str
    """What else the row or column says: a corruption, a network, an option; empty where nothing is."""
    metric: str
    value: float
    std: float | None


@cache
def paper_figures(table: str | None = None) -> Sequence[PaperFigure]:
    """Every figure of a table, or of all, in the paper's order."""
    text = files("pseudocoresets.evaluation").joinpath("paper_figures.csv").read_text(encoding="utf-8")
    return tuple(
        PaperFigure(
            row["table"],
            row["dataset"],
            int(row["ipc"]),
            row["method"],
            row["variant"],
            row["metric"],
            float(row["value"]),
            float(row["std"]) if row["std"] else None,
        )
        for row in csv.DictReader(text.splitlines())
        if table in (None, row["table"])
    )


def paper_figure(dataset: str, ipc: int, method: str, metric: str) -> float | None:
    """The paper's mean for one cell, accuracy as a fraction; None where it reports nothing."""
    value = _means().get((dataset, ipc, PAPER_NAMES.get(method, ""), metric))
    if value is None:
        return None
    return value / 100 if metric == "accuracy" else value


def paper_cost(dataset: str, ipc: int, method: str) -> tuple[float | None, float | None]:
    """Seconds per iteration and gigabytes of device memory of a method; None where the paper reports none."""
    own = (dataset, ipc, COST_NAMES.get(method))
    figures = (figure for table in COST_TABLES for figure in paper_figures(table))
    found = {each.metric: each.value for each in figures if (each.dataset, each.ipc, each.method) == own}
    return found.get("seconds per iteration"), found.get("gpu memory (GB)")


def best_paper_accuracy(dataset: str, ipc: int) -> float | None:
    """The highest mean accuracy that the paper reports for a cell by any method, as a fraction."""
    found = [
        value
        for (name, size, _, metric), value in _means().items()
        if (name, size, metric) == (dataset, ipc, "accuracy")
    ]
    return max(found) / 100 if found else None


@cache
def _means() -> dict[tuple[str, int, str, str], float]:
    figures = (figure for table in ACCURACY_TABLES for figure in paper_figures(table))
    return {(each.dataset, each.ipc, each.method, each.metric): each.value for each in figures}
