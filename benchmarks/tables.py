"""Write docs/results.md from the recorded results.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pseudocoresets.evaluation.paper import best_paper_accuracy, paper_figure

ROOT = Path(__file__).parent.parent
METHODS = ROOT / "benchmarks/results/methods_ipc10.json"
CELLS = ROOT / "benchmarks/results/paper_cells.json"
NAMES = {
    "random": "random real images (control)",
    "cd": "cd, paired",
    "cd-plain": "cd, as the paper defines it",
    "fkl-rate-1000": "fkl, learning rate 1000",
    "bptt": "bptt, from wasserstein's coreset",
    "bptt-labels": "bptt, soft labels",
    "random-labels": "random real images, soft labels",
}
SOFT = ("bptt-labels", "random-labels")
HEADER = (
    "", "accuracy %", "one chain %", "NLL", "ECE", "Brier", "gain %", "paper %", "paper NLL", "iterations",
    "s/iteration", "peak MiB",
)  # fmt: skip
CELL_HEADER = (
    "ipc", "", "constructions", "accuracy %", "one chain %", "NLL", "ECE", "chain steps", "iterations", "device s",
)  # fmt: skip
INTRODUCTION = """# Results

This page is written by `python benchmarks/tables.py` from `benchmarks/results/`; do not edit it.

Test data, cold protocol (random initialisation, the coreset only, hard labels), ConvNet D3W128, average
over 5 chains. "Paper" is what the contrastive-divergence paper reports under its own protocol, which starts chains from
experts.
"""
CELLS_INTRODUCTION = """
## The paper's cells

A tenth of the training data was held out from experts and constructions. For each row, it chose when chains stop: after
how many steps, the samples being those of the second half; the choice of highest accuracy among those with an ECE of at
most 0.04, or that of the lowest ECE where there is none. The test data was then looked at once. "Device s" is the time
of the construction, what it started from included, and of the judgement. Settings are those of `--preset paper`. One
cell is made by

    cd benchmarks && python cells.py --jobs jobs/paper.json --only cifar10 10 --experts 6 --epochs 30 --test --out OUT
"""
METHODS_INTRODUCTION = """
## All methods, ten images per class

One construction a method, so differences of a point are noise; the control is the mean of three draws. 20 samples a
chain.
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(cells) + " |"


def row_cells(label: str, rows: list[dict[str, Any]], control: float) -> list[str]:
    first = rows[0]

    def mean(key: str) -> float:
        return statistics.fmean(row[key] for row in rows)

    cost = ["", "", ""]
    if "iterations" in first:
        cost = [
            str(first["iterations"]),
            f"{first['seconds_per_iteration']:.3f}",
            f"{first['peak_memory'] / 2**20:,.0f}",
        ]
    method = "cd" if label == "cd-plain" else first["method"]
    accuracy, nll = (paper_figure(first["dataset"], first["ipc"], method, name) for name in ("accuracy", "nll"))
    return [
        NAMES.get(label, label),
        f"{100 * mean('accuracy'):.1f}",
        f"{100 * mean('chain_accuracy'):.1f}",
        *(f"{mean(name):.3f}" for name in ("nll", "ece", "brier")),
        f"{100 * (mean('accuracy') - control):+.1f}",
        "" if accuracy is None else f"{100 * accuracy:.1f}",
        "" if nll is None else f"{nll:.2f}",
        *cost,
    ]


def paper_cells(document: dict[str, Any]) -> Iterator[str]:
    groups: dict[str, dict[tuple[int, str], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in document["rows"]:
        if "test" in row:
            groups[row["dataset"]][row["ipc"], row["label"]].append(row)
    for dataset, cells in groups.items():
        yield f"\n### {dataset}\n"
        order = sorted(cells, key=lambda cell: (cell[0], cell[1] in SOFT, _mean(cells[cell], "accuracy")))
        yield from table(CELL_HEADER, [cell_row(ipc, label, cells) for ipc, label in order])
        yield from ("", *paper_lines(dataset, sorted({ipc for ipc, _ in cells})))
        for ipc in sorted({ipc for ipc, _ in cells}):
            yield from picture_line(dataset, ipc, "bptt")
    yield ""
    experts = [row for row in document["rows"] if "experts" in row]
    made = "; ".join(f"{row['experts']} {row['seconds']:.0f} s" for row in experts)
    yield f"- Experts ({experts[0]['count']} of {experts[0]['epochs']} epochs), reading the data included: {made}."
    yield from (f"- {note}" for note in document["notes"])
    commands = "\n".join(document["commands"])
    yield f"\nMade at commit {', '.join(document['commits'])} on one {document['device']} by\n\n```\n{commands}\n```"


def cell_row(ipc: int, label: str, cells: dict[tuple[int, str], list[dict[str, Any]]]) -> list[str]:
    rows = cells[ipc, label]
    accuracies = [100 * row["test"]["accuracy"] for row in rows]
    spread = f" ± {statistics.stdev(accuracies):.1f}" if len(rows) > 1 else ""
    return [
        str(ipc),
        NAMES.get(label, label),
        "" if rows[0]["method"] == "random" else str(len(rows)),
        f"{statistics.fmean(accuracies):.1f}{spread}",
        f"{100 * _mean(rows, 'chain_accuracy'):.1f}",
        f"{_mean(rows, 'nll'):.3f}",
        f"{_mean(rows, 'ece'):.3f}",
        ", ".join(str(row["chosen"]["steps"]) for row in rows),
        str(rows[0].get("iterations", "")),
        f"{device_seconds(ipc, label, cells):.0f}",
    ]


def device_seconds(ipc: int, label: str, cells: dict[tuple[int, str], list[dict[str, Any]]]) -> float:
    """The mean over constructions, each with what it started from and with its judgement."""
    rows = cells[ipc, label]
    own = statistics.fmean(row.get("construct_seconds", 0.0) for row in rows)
    initial = rows[0].get("initial")
    before = device_seconds(ipc, initial, cells) - _judging(cells[ipc, initial]) if initial else 0.0
    return before + own + _judging(rows)


def _judging(rows: list[dict[str, Any]]) -> float:
    return statistics.fmean(row["judge_seconds"] for row in rows)


def _mean(rows: list[dict[str, Any]], metric: str) -> float:
    return statistics.fmean(row["test"][metric] for row in rows)


def paper_lines(dataset: str, ipcs: Sequence[int]) -> Iterator[str]:
    """What the paper has for contrastive divergence, and its best of any method."""
    found = []
    for ipc in ipcs:
        accuracy, nll = (paper_figure(dataset, ipc, "cd", name) for name in ("accuracy", "nll"))
        best = best_paper_accuracy(dataset, ipc)
        if accuracy is not None and nll is not None and best is not None:
            found.append(f"ipc {ipc}: {100 * accuracy:.1f} (NLL {nll:.2f}), best {100 * best:.1f}")
    yield f"Paper, contrastive divergence and best of any method: {'; '.join(found)}."


def picture_line(dataset: str, ipc: int, method: str) -> Iterator[str]:
    if (ROOT / "docs/images" / (picture := f"{dataset}-ipc{ipc}-{method}.png")).exists():
        yield f"\n![The coreset of {method}, {dataset}, {ipc} image(s) per class](images/{picture})"


def cells_of(document: dict[str, Any]) -> Iterator[str]:
    groups: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in document["rows"]:
        if "method" in row:
            groups[row["dataset"], row["ipc"]][row["label"]].append(row)
    for (dataset, ipc), labels in groups.items():
        control = statistics.fmean(row["accuracy"] for row in labels["random"])
        order = sorted(labels, key=lambda label: statistics.fmean(row["accuracy"] for row in labels[label]))
        yield f"\n### {dataset}\n"
        yield from table(HEADER, [row_cells(label, labels[label], control) for label in reversed(order)])
        yield from picture_line(dataset, ipc, "wasserstein")


def settings_of(document: dict[str, Any]) -> Iterator[str]:
    experts = [row for row in document["rows"] if "experts" in row]
    made = "; ".join(f"{row['count']} of {row['epochs']} epochs on {row['experts']}" for row in experts)
    sampling = next(row["plan"]["sampling"] for row in document["rows"] if "plan" in row)
    yield f"\n- Experts: {made}. Two constructions shared the device; an iteration alone takes about half the time."
    yield (
        f"- Posterior: Langevin of {sampling['steps']:,} steps of {sampling['step_size']:g} at temperature "
        f"{sampling['temperature']:g}, prior scale {sampling['prior_scale']:g}, for every row."
    )
    yield from (f"- {note}" for note in document["notes"])
    yield "\n### Settings\n"
    rows = []
    for row in document["rows"]:
        if "method" in row and row["method"] != "random":
            learning = row["plan"]["construction"]
            shown = ("optimiser", "learning_rate", "momentum", "averaging", "temperature")
            rows.append(
                [
                    row["dataset"],
                    NAMES.get(row["label"], row["label"]),
                    ", ".join(f"{name} {value:g}" for name, value in row["plan"]["method_options"].items())
                    or "defaults",
                    ", ".join(f"{name.replace('_', ' ')} {learning[name]}" for name in shown),
                ]
            )
    yield from table(("data", "method", "options", "learning"), rows)
    commands = "\n".join(document["command"])
    yield f"\nMade at commit {document['commit']} on one {document['device']} (torch {document['torch']}) by\n"
    yield f"```\n{commands}\n```"


def page() -> str:
    cells, methods = (json.loads(path.read_text(encoding="utf-8")) for path in (CELLS, METHODS))
    parts = [INTRODUCTION.rstrip(), CELLS_INTRODUCTION.rstrip(), *paper_cells(cells), METHODS_INTRODUCTION.rstrip()]
    return "\n".join([*parts, *cells_of(methods), *settings_of(methods)]) + "\n"


def main() -> None:
    (ROOT / "docs/results.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
