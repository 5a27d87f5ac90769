"""Figures that the paper reports, means of single runs, to stand beside ours.

Names in brackets are the samplers of its evaluation: "bpc-fkl (hmc)" is not forward KL estimated by HMC.
"""

from __future__ import annotations

import csv
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
    "dm": "dm",
    "gm": "gm",
    "dsa": "dsa",
    "cafe": "cafe",
    "cafe-dsa": "cafe+dsa",
}


def paper_figure(dataset: str, ipc: int, method: str, metric: str) -> float | None:
    """The paper's mean for one cell, accuracy as a fraction; None where it reports nothing."""
    value = _figures().get((dataset, ipc, PAPER_NAMES.get(method, ""), metric))
    if value is None:
        return None
    return value / 100 if metric == "accuracy" else value


def best_paper_accuracy(dataset: str, ipc: int) -> float | None:
    """The highest mean accuracy that the paper reports for a cell by any method, as a fraction."""
    found = [
        value
        for (name, size, _, metric), value in _figures().items()
        if (name, size, metric) == (dataset, ipc, "accuracy")
    ]
    return max(found) / 100 if found else None


@cache
def _figures() -> dict[tuple[str, int, str, str], float]:
    text = files("pseudocoresets.evaluation").joinpath("paper_figures.csv").read_text(encoding="utf-8")
    return {
        (row["dataset"], int(row["ipc"]), row["method"], row["metric"]): float(row["value"])
        for row in csv.DictReader(text.splitlines())
    }
