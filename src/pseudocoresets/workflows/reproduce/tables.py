"""From records to tables: ours beside the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import naming, read_text
from pseudocoresets._io.schema import ANY_OBJECT, NAME, NON_NEGATIVE, ListOf, Nullable, Number, Object
from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.evaluation.metrics import METRICS
from pseudocoresets.evaluation.paper import PaperFigure
from pseudocoresets.methods import build_gradient_method
from pseudocoresets.workflows.bench_methods import updates_per_network
from pseudocoresets.workflows.cells import FAILURE, RESULT, Document, as_number, markdown_table, whole_result
from pseudocoresets.workflows.reproduce.catalogue import CORRUPTION_NAMES, Entry, Place, Table
from pseudocoresets.workflows.reproduce.cells import CELL_KIND, VARIANTS, Made, ReproductionCell
from pseudocoresets.workflows.reproduce.scale import Scale

Records = Mapping[ReproductionCell, Document]
JOINED_COLUMNS = (
    "data", "images per class", "ours", "published", "point", "cold, one chain", "cold, averaged", "its NLL", "its ECE",
    "iterations", "seconds", "peak GB",
)  # fmt: skip
COSTS = {
    "gpu memory (GB)": "peak_memory",
    "seconds per iteration": "seconds_per_iteration",
    "iterations": "iterations",
    "construction seconds": "construct_seconds",
}
_SCORE = Nullable(Number())
_VALUES = Object({"values": ListOf(_SCORE, 10_000)})
_AVERAGES = Object(optional=dict.fromkeys(METRICS, _SCORE))
_SCORES = Object({"ensemble": _AVERAGES}, dict.fromkeys(METRICS, _VALUES))
_ALL_SCORES = Object({"ensemble": _AVERAGES, **dict.fromkeys(METRICS, _VALUES)})
RECORD = Object(
    {"cell": CELL_KIND, "plan": Object({"method": NAME, "method_options": ANY_OBJECT})},
    optional={
        "construction": Object(optional=dict.fromkeys(COSTS.values(), Nullable(NON_NEGATIVE))),
        "metrics": _SCORES,
        "shift": Object(others=Object(others=_ALL_SCORES)),
        "attack": Object(others=Object(others=Object({"accuracy": _VALUES, "ensemble": _SCORE}))),
        "seconds": NON_NEGATIVE,
    },
)
"""What is read of a cell's file."""
REPORTED_ATTACK = "autoattack-style", "8/255"


@dataclass(frozen=True)
class Unit:
    """How a metric of the paper is written, and who is ahead."""

    factor: float = 1.0
    decimals: int = 2
    higher_is_better: bool | None = False
    """None: the two are not the same quantity."""


UNITS = {
    "accuracy": Unit(100, 1, True),
    "clean accuracy": Unit(100, 1, True),
    "robust accuracy": Unit(100, 1, True),
    "nll": Unit(higher_is_better=None),
    "ece": Unit(decimals=3),
    "brier": Unit(decimals=3),
    "gpu memory (GB)": Unit(1e-9),
    "seconds per iteration": Unit(decimals=3),
    "iterations": Unit(decimals=0, higher_is_better=None),
    "construction seconds": Unit(decimals=0, higher_is_better=None),
}


@dataclass(frozen=True)
class Reading:
    """One metric of one cell over its seeds, in the paper's unit."""

    runs: tuple[float, ...]
    """Single chains of all constructions."""
    averages: tuple[float, ...]
    """Of all chains together, one for each construction."""
    cells: tuple[ReproductionCell, ...]

    @property
    def mean(self) -> float | None:
        """Of single runs, where they were recorded."""
        return statistics.fmean(self.runs) if self.runs else None

    @property
    def averaged(self) -> float | None:
        return statistics.fmean(self.averages) if self.averages else None

    def text(self, unit: Unit) -> str:
        """Mean and deviation of single runs."""
        if self.mean is None:
            return ""
        spread = f" ± {statistics.stdev(self.runs):.{unit.decimals}f}" if len(self.runs) > 1 else ""
        return f"{self.mean:.{unit.decimals}f}{spread}"

    def averaged_text(self, unit: Unit) -> str:
        return "" if self.averaged is None else f"{self.averaged:.{unit.decimals}f}"


@dataclass(frozen=True)
class Comparison:
    """A metric at a place: the paper's, ours, and what stands beside ours."""

    metric: str
    paper: PaperFigure | None
    ours: Reading | None
    control: Reading | None
    starts: Reading | None

    @property
    def unit(self) -> Unit:
        return UNITS[self.metric]

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or nothing: the mean of our single runs against the paper's."""
        higher = self.unit.higher_is_better
        mean = None if self.ours is None else self.ours.mean
        if mean is None or self.paper is None or higher is None or mean == self.paper.value:
            return ""
        return "better" if (mean > self.paper.value) == higher else "worse"

    @property
    def paper_text(self) -> str:
        if self.paper is None:
            return ""
        spread = "" if self.paper.std is None else f" ± {self.paper.std:g}"
        return f"{self.paper.value:g}{spread}"


@dataclass(frozen=True)
class Line:
    """One of our cells at a place of a table."""

    place: Place
    entry: Entry
    comparisons: tuple[Comparison, ...]

    @property
    def has_records(self) -> bool:
        return any(comparison.ours is not None for comparison in self.comparisons)

    @property
    def label(self) -> str:
        cell = self.entry.cell
        words = [VARIANTS[cell.made.variant].title]
        if cell.test not in ("cost", "pictures"):
            words.append(cell.protocol + (f" by {cell.sampler}" if cell.sampler else ""))
        return ", ".join(words)


def read_records(out: Path) -> dict[ReproductionCell, Document]:
    """Every finished cell below ``out`` that nothing has changed since."""
    found: dict[ReproductionCell, Document] = {}
    for path in sorted((out / "cells").glob(f"*/*/{RESULT}")):
        document = whole_result(path)
        if document is not None and "cell" in document:
            with naming(path):
                RECORD.check(document, "it")
            found[ReproductionCell.from_json(document["cell"])] = document
    return found


def failures(out: Path) -> dict[str, str]:
    """The last line of what ended each cell that failed, by its name."""
    paths = sorted((out / "cells").glob(f"*/*/{FAILURE}"))
    return {f"{path.parent.parent.name} {path.parent.name}": _last_line(path) for path in paths}


def _last_line(path: Path) -> str:
    try:
        return (read_text(path).strip().splitlines() or ["It was not recorded why."])[-1]
    except FileFormatError as error:
        return str(error)


def lines_of(table: Table, records: Records, scale: Scale) -> list[Line]:
    """Every place of the table with each of our entries, whether it has records or not."""
    known = _by_first_seed(records)
    return [
        Line(place, entry, tuple(_comparison(metric, place, entry, known, scale) for metric in table.metrics))
        for place in table.places()
        for entry in table.entries(place)
    ]


def _by_first_seed(records: Records) -> dict[ReproductionCell, list[tuple[ReproductionCell, Document]]]:
    grouped: dict[ReproductionCell, list[tuple[ReproductionCell, Document]]] = {}
    for cell, document in records.items():
        first = next(cell.seeded(1))
        grouped.setdefault(first, []).append((cell, document))
    return grouped


def _comparison(
    metric: str,
    place: Place,
    entry: Entry,
    known: Mapping[ReproductionCell, list[tuple[ReproductionCell, Document]]],
    scale: Scale,
) -> Comparison:
    def reading(cell: ReproductionCell | None) -> Reading | None:
        found = [] if cell is None else known.get(scale.cell(cell), [])
        read = [(each, values) for each, document in found if (values := _values(metric, place, document)) is not None]
        if not read:
            return None
        factor = UNITS[metric].factor
        runs = tuple(factor * value for _, (single, _) in read for value in single)
        averages = tuple(factor * average for _, (_, average) in read if average is not None)
        return Reading(runs, averages, tuple(each for each, _ in read))

    beside = {cell.role: cell for cell in entry.beside}
    return Comparison(
        metric,
        place.figures.get(metric),
        reading(entry.cell),
        reading(beside.get("control")),
        reading(beside.get("starts")),
    )


def _values(metric: str, place: Place, document: Document) -> tuple[list[float], float | None] | None:
    """Single runs and the average over chains, in this library's unit."""
    construction = document.get("construction", {})
    if metric in COSTS:
        cost = construction.get(COSTS[metric])
        if not cost:
            return None
        return [float(cost) * (_updates_per_iteration(document) if metric == "seconds per iteration" else 1)], None
    if metric == "robust accuracy":
        attack, epsilon = REPORTED_ATTACK
        attacked = document.get("attack", {}).get(attack, {}).get(epsilon)
        if attacked is None:
            return None
        return list(map(as_number, attacked["accuracy"]["values"])), as_number(attacked["ensemble"])
    name = metric.removeprefix("clean ")
    if place.variant and "shift" in document:
        return _mean_over_severities(name, document["shift"].get(corruption_of(place.variant)))
    metrics = document.get("metrics")
    if metrics is None:
        return None
    average = metrics["ensemble"].get(name, ...)
    single = list(map(as_number, metrics.get(name, {}).get("values", [])))
    return single, None if average is ... else as_number(average)


def _updates_per_iteration(document: Document) -> int:
    """How many of our iterations are one of the paper's, which counts the networks of gradient matching."""
    plan = document["plan"]
    return updates_per_network(build_gradient_method(plan["method"], plan["method_options"]))


def _mean_over_severities(name: str, severities: Mapping[str, Any] | None) -> tuple[list[float], float] | None:
    if not severities:
        return None
    runs = [list(map(as_number, each[name]["values"])) for each in severities.values()]
    single = zip(*(each[: min(map(len, runs))] for each in runs), strict=True)
    averaged = statistics.fmean(as_number(each["ensemble"].get(name)) for each in severities.values())
    return [statistics.fmean(chain) for chain in single], averaged


def corruption_of(variant: str) -> str:
    """The corruption that a column of the paper's table means."""
    return CORRUPTION_NAMES.get(variant, variant.replace(" ", "_"))


def markdown(table: Table, lines: Sequence[Line]) -> list[str]:
    """The table with those of its lines that have records."""
    shown = [line for line in lines if line.has_records]
    head = [f"### {table.title} (`{table.name}`)", "", *([table.note, ""] if table.note else [])]
    if not shown:
        return [*head, f"None of its {len(lines)} lines has been computed.", ""]
    left = "" if len(shown) == len(lines) else f"{len(lines) - len(shown)} of {len(lines)} lines are not computed."
    body = (
        markdown_table(JOINED_COLUMNS, _joined_rows(shown))
        if table.joined
        else markdown_table(_columns(table, shown), _rows(table, shown))
    )
    return [*head, *body, "", *([left, ""] if left else [])]


def _columns(table: Table, lines: Sequence[Line]) -> list[str]:
    columns = ["data", "images per class", *(["where"] if _has_variants(lines) else []), "paper's row", "ours"]
    for index, metric in enumerate(table.metrics):
        columns += [f"{metric}: paper", *(["ours, one chain", "averaged"] if is_averaged(lines, index) else ["ours"])]
    return columns + (["control, one chain", "starts alone"] if table.controlled else [])


def _rows(table: Table, lines: Sequence[Line]) -> Iterator[list[str]]:
    for line in lines:
        place = line.place
        row = [place.dataset, str(place.ipc), *([place.variant] if _has_variants(lines) else [])]
        row += [place.method, line.label]
        for index, each in enumerate(line.comparisons):
            ours = "" if each.ours is None else each.ours.text(each.unit)
            row += [each.paper_text, _marked(ours, each.verdict)]
            if is_averaged(lines, index):
                row.append("" if each.ours is None else each.ours.averaged_text(each.unit))
        if table.controlled:
            first = line.comparisons[0]
            row += ["" if each is None else each.text(first.unit) for each in (first.control, first.starts)]
        yield row


def _joined_rows(lines: Sequence[Line]) -> Iterator[list[str]]:
    """A row for each coreset: the paper's figure, both protocols, and what it cost."""
    rows: dict[Made, dict[str, Line]] = {}
    for line in lines:
        rows.setdefault(line.entry.cell.made, {})[line.entry.cell.protocol] = line
    for made, of_protocol in rows.items():
        point, cold = (_by_metric(of_protocol.get(protocol)) for protocol in ("point", "cold"))
        cost = cold or point
        yield [
            made.dataset,
            str(made.ipc),
            VARIANTS[made.variant].title,
            next(iter(of_protocol.values())).comparisons[0].paper_text,
            _single(point.get("accuracy")),
            _single(cold.get("accuracy")),
            *(_average(cold.get(metric)) for metric in ("accuracy", "nll", "ece")),
            _iterations(cost.get("iterations"), made),
            *(_single(cost.get(metric)) for metric in ("construction seconds", "gpu memory (GB)")),
        ]


def _by_metric(line: Line | None) -> dict[str, Comparison]:
    return {} if line is None else {each.metric: each for each in line.comparisons}


def _single(found: Comparison | None) -> str:
    return "" if found is None or found.ours is None else _marked(found.ours.text(found.unit), found.verdict)


def _average(found: Comparison | None) -> str:
    return "" if found is None or found.ours is None else found.ours.averaged_text(found.unit)


def _iterations(found: Comparison | None, made: Made) -> str:
    """How many there were, and how many the settings have where that is more."""
    if found is None or found.ours is None or found.ours.mean is None:
        return ""
    planned, count = Scale().plan(ReproductionCell(made)).construction.iterations, round(found.ours.mean)
    return f"{count:,}" if count == planned else f"{count:,} of {planned:,}"


def _has_variants(lines: Iterable[Line]) -> bool:
    return any(line.place.variant for line in lines)


def is_averaged(lines: Iterable[Line], metric: int) -> bool:
    """Whether a metric is one of chains, which can be averaged, and not of a construction."""
    found = (line.comparisons[metric].ours for line in lines)
    return any(reading is not None and reading.averages for reading in found)


def _marked(text: str, verdict: str) -> str:
    return f"**{text}**" if verdict == "better" else text
