"""What commands print: one table for people, one JSON document for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from pseudocoresets.evaluation import METRICS

WIDTH_WITHOUT_TERMINAL = 120
TITLES = {"accuracy": "accuracy %", "nll": "NLL", "ece": "ECE", "brier": "Brier"}


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
    """A table on standard output; the first column is text, the others are numbers."""
    table = Table(title=title, caption=caption or None, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    Console(width=width, highlight=False).print(table)


def metric_columns() -> list[str]:
    return [TITLES[name] for name in METRICS] + ["BMA accuracy %", "BMA NLL"]


def metric_cells(report: Mapping[str, Any]) -> list[str]:
    """Mean and deviation of each metric, and the average over all chains and samples."""
    cells = [_mean_and_deviation(report[name], 100 if name == "accuracy" else 1) for name in METRICS]
    ensemble = report["ensemble"]
    return [*cells, f"{100 * ensemble['accuracy']:.1f}", f"{ensemble['nll']:.3f}"]


def _mean_and_deviation(summary: Mapping[str, Any], scale: float) -> str:
    digits = 1 if scale == 100 else 3
    return f"{scale * summary['mean']:.{digits}f} ± {scale * summary['std']:.{digits}f}"
