"""The paper's tables and figures as Markdown and as one page: ours beside the paper's, each number with its details."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pseudocoresets._io.files import write_text
from pseudocoresets._io.pictures import data_address
from pseudocoresets._report import charts
from pseudocoresets._report.templates import rendered
from pseudocoresets._report.wording import duration, flattened
from pseudocoresets.evaluation.metrics import METRICS
from pseudocoresets.workflows.cells import Document
from pseudocoresets.workflows.reproduce.catalogue import FIGURES, TABLES
from pseudocoresets.workflows.reproduce.cells import ROLES, VARIANTS, ReproductionCell, slug
from pseudocoresets.workflows.reproduce.judge import PICTURE, Order
from pseudocoresets.workflows.reproduce.scale import Scale
from pseudocoresets.workflows.reproduce.tables import (
    Comparison,
    Line,
    Reading,
    Records,
    failures,
    is_averaged,
    lines_of,
    markdown,
    read_records,
)

PAGE_FILE, TABLES_FILE = "index.html", "tables.md"
SMOKE_WARNING = "A smoke test: a tiny network on the digits stands in for every cell, and its figures mean nothing."
DETAILS = ("command", "commit", "device", "torch", "python", "plan", "construction")
STYLES = ("first", "second", "third", "muted")


def write_reproduction(out: Path, scale: Scale) -> Path:
    """tables.md and index.html from the records below ``out``; the path of the page."""
    records = read_records(out)
    tables = {name: lines_of(table, records, scale) for name, table in TABLES.items()}
    text = [line for name, lines in tables.items() if name not in FIGURES for line in markdown(TABLES[name], lines)]
    warning = [f"**{SMOKE_WARNING}**", ""] if scale.is_smoke else []
    write_text(out / TABLES_FILE, "\n".join(["# The paper's tables, ours beside the paper's", "", *warning, *text]))
    page = rendered(
        "reproduction.html",
        title="The paper's tables and figures",
        warning=SMOKE_WARNING if scale.is_smoke else "",
        tables=[_table(name, lines) for name, lines in tables.items() if name not in FIGURES],
        pictures=_pictures(tables["pictures"], records, Order(out, scale=scale)),
        charts=_charts(tables["memory-time"]),
        cells=[_details(cell, document) for cell, document in records.items()],
        failures=list(failures(out).items()),
    )
    write_text(out / PAGE_FILE, page)
    return out / PAGE_FILE


def anchor(cell: ReproductionCell) -> str:
    return f"cell-{slug(cell.made.slug, cell.slug)}"


def _table(name: str, lines: Sequence[Line]) -> dict[str, Any]:
    table = TABLES[name]
    ahead = [each.verdict for line in lines for each in line.comparisons if each.verdict]
    return {
        "name": name,
        "title": table.title,
        "note": table.note,
        "columns": [_columns(metric, index, lines) for index, metric in enumerate(table.metrics)],
        "controlled": table.controlled,
        "variants": any(line.place.variant for line in lines),
        "ahead": ahead.count("better"),
        "behind": ahead.count("worse"),
        "absent": sum(not line.has_records for line in lines),
        "rows": [_row(line) for line in lines],
    }


def _columns(metric: str, index: int, lines: Sequence[Line]) -> dict[str, str]:
    """The headings of a metric, as far as it has them: the paper may not report it, and costs have no average."""
    reported = any(line.comparisons[index].paper for line in lines)
    averaged = is_averaged(lines, index)
    ours = "one chain" if averaged else "ours"
    return {
        "paper": f"{metric}, paper" if reported else "",
        "ours": ours if reported else f"{metric}, one chain" if averaged else metric,
        "averaged": "averaged" if averaged else "",
    }


def _row(line: Line) -> dict[str, Any]:
    first = line.comparisons[0]
    return {
        "place": line.place,
        "label": line.label,
        "computed": line.has_records,
        "comparisons": [_numbers(each) for each in line.comparisons],
        "beside": [_number(reading, first) for reading in (first.control, first.starts)],
    }


def _numbers(comparison: Comparison) -> dict[str, Any]:
    return _number(comparison.ours, comparison) | {"paper": comparison.paper_text, "verdict": comparison.verdict}


def _number(reading: Reading | None, comparison: Comparison) -> dict[str, Any]:
    if reading is None:
        return {"text": "", "averaged": "", "anchor": ""}
    unit = comparison.unit
    return {"text": reading.text(unit), "averaged": reading.averaged_text(unit), "anchor": anchor(reading.cells[0])}


def _details(cell: ReproductionCell, document: Document) -> dict[str, Any]:
    kept = {name: document[name] for name in DETAILS if name in document}
    results = {name: document[name] for name in ("shift", "attack") if name in document}
    metrics = document.get("metrics", {})
    scores = {name: metrics[name] for name in (*METRICS, "ensemble", "calibrated") if name in metrics}
    return {
        "anchor": anchor(cell),
        "title": f"{cell.made.dataset}, {cell.made.ipc} image(s) per class, {VARIANTS[cell.made.variant].title}: "
        f"{cell.slug.replace('-', ' ')}, seed {cell.made.seed}",
        "role": ROLES[cell.role],
        "seconds": duration(document.get("seconds")),
        "rows": flattened({**scores, **results, **kept}),
    }


def _pictures(lines: Sequence[Line], records: Records, order: Order) -> list[dict[str, Any]]:
    found: dict[ReproductionCell, dict[str, Any]] = {}
    for line in lines:
        cell = order.scale.cell(line.entry.cell)
        path = order.folder(cell) / PICTURE
        if cell in records and path.is_file():
            source = data_address(path.read_bytes(), "image/png")
            place = f"{line.place.dataset}, {line.place.ipc} image(s) per class, {line.label}"
            found.setdefault(cell, {"title": place, "source": source, "anchor": anchor(cell)})
    return list(found.values())


def _charts(lines: Sequence[Line]) -> list[Markup]:
    """Memory and time against images per class: dashed lines are the paper's."""
    drawn = []
    metrics = dict.fromkeys(each.metric for line in lines for each in line.comparisons)
    for number, metric in enumerate(metrics):
        series = []
        for index, method in enumerate(dict.fromkeys(line.place.method for line in lines)):
            own = [line for line in lines if line.place.method == method]
            paper = {line.place.ipc: line.comparisons[number].paper for line in own}
            points = [(float(ipc), figure.value) for ipc, figure in paper.items() if figure is not None]
            series.append(charts.Series(f"{method}, paper", STYLES[index % len(STYLES)], points))
            ours = {line.place.ipc: line.comparisons[number].ours for line in own}
            read = [(float(ipc), reading.mean) for ipc, reading in ours.items() if reading and reading.mean]
            if read:
                series.append(charts.Series(f"{method}, ours", STYLES[index % len(STYLES)], read, [30.0] * len(read)))
        drawn.append(charts.curves(metric, "against images per class", series, metric, "images per class"))
    return drawn
