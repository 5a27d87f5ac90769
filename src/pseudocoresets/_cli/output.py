"""What commands print: one table for people, one JSON document for machines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from pseudocoresets._cli.process import say
from pseudocoresets._io.documents import json_text
from pseudocoresets.core.text import printable

if TYPE_CHECKING:
    from pseudocoresets.dp import Guarantee

WIDTH_WITHOUT_TERMINAL = 10_000
"""Wider than any table: what is piped is not shortened."""
CAPTION_WIDTH = 100


def print_json(document: Any) -> None:
    typer.echo(json_text(document, indent=2))


def with_guarantee(guarantee: Guarantee | None) -> dict[str, Any]:
    """What a document says of differential privacy, where there is some."""
    return {} if guarantee is None else {"guarantee": guarantee.as_json() | {"sentence": str(guarantee)}}


def echo_guarantee(guarantee: Guarantee | None) -> None:
    if guarantee is not None:
        typer.echo(str(guarantee))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
    """A table on standard output; the first column is text, the others are numbers, and nothing in it is markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)), title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(width=width, highlight=False, markup=False)
    console.print(table)
    for line in caption.splitlines():
        console.print(printable(line), style="dim", width=None if console.is_terminal else CAPTION_WIDTH)


def print_metrics(title: str, metrics: Mapping[str, Any], caption: str = "") -> None:
    """A coreset's scores below those of its control, where there is one."""
    from pseudocoresets.evaluation import METRICS
    from pseudocoresets.evaluation.report import method_title

    alike = ["top class %", "total variation"] if "agreement" in metrics else []
    sharp = ["BMA ECE", "calibrated NLL", "calibrated ECE"] if "calibrated" in metrics else []
    columns = ["", *(metric.title for metric in METRICS.values()), "BMA accuracy %", "BMA NLL", *sharp, *alike]
    made_by = method_title(metrics["method"], metrics["labels_learned"], metrics["formation"])
    sides = {"random real images (control)": metrics.get("control"), f"{made_by} coreset": metrics}
    rows = [[name, *_cells(side)] for name, side in sides.items() if side is not None]
    print_table(title, columns, rows, "\n".join(line for line in (caption, *how_calibrated(metrics)) if line))


def how_calibrated(metrics: Mapping[str, Any]) -> list[str]:
    """A sentence on what made the averages as sure as they should be, where something did."""
    from pseudocoresets._report.results import calibration_powers, section

    own = section(metrics, "calibrated")
    if not own:
        return []
    powers = calibration_powers(own, section(section(metrics, "control"), "calibrated"))
    chosen = f"that {own['images']:,} training images chose"
    return [f"Calibrated: averaged probabilities to the power ({powers}) {chosen}."]


def warn_of_chains(metrics: Mapping[str, Any]) -> None:
    """Say on standard error if the chains of the coreset or of its control disagree."""
    for name, block in (("coreset", metrics), ("control", metrics.get("control", {}))):
        warning = (block.get("diagnostics") or {}).get("warning")
        if warning:
            say(f"Warning about the {name}: {warning}")


def _cells(report: Mapping[str, Any]) -> list[str]:
    """Mean and deviation of each metric, the average over chains and samples, and its agreement with a reference."""
    from pseudocoresets.evaluation import METRICS

    spreads = [metric.spread(report[name]["mean"], report[name]["std"]) for name, metric in METRICS.items()]
    alike = report.get("agreement")
    with_reference = [] if alike is None else [f"{100 * alike['top_class']:.1f}", f"{alike['total_variation']:.3f}"]
    average, sharp = report["ensemble"], report.get("calibrated")
    averages = [METRICS[name].value(average[name]) for name in ("accuracy", "nll")]
    if sharp is not None:
        averages.append(METRICS["ece"].value(average["ece"]))
        averages += [METRICS[name].value(sharp["ensemble"][name]) for name in ("nll", "ece")]
    return spreads + averages + with_reference
