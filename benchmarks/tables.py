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

from pseudocoresets.evaluation.paper import paper_figure

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/methods_ipc10.json"
NAMES = {
    "random": "random real images (control)",
    "cd": "cd, paired",
    "cd-plain": "cd, as the paper defines it",
    "fkl-rate-1000": "fkl, learning rate 1000",
}
HEADER = (
    "", "accuracy %", "one chain %", "NLL", "ECE", "Brier", "gain %", "paper %", "paper NLL", "iterations",
    "s/iteration", "peak MiB",
)  # fmt: skip
INTRODUCTION = """# Results

This page is written by `python benchmarks/tables.py` from `benchmarks/results/`; do not edit it.

Test data, cold protocol (random initialisation, the coreset only, hard labels), ConvNet D3W128, average
over 5 chains of 20 samples. One construction a method, so differences of a point are noise; the control is the mean of
three draws. "Paper" is the figure that the contrastive-divergence paper reports for the method under its own protocol.
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


def cells_of(document: dict[str, Any]) -> Iterator[str]:
    groups: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in document["rows"]:
        if "method" in row:
            groups[row["dataset"], row["ipc"]][row["label"]].append(row)
    for (dataset, ipc), labels in groups.items():
        control = statistics.fmean(row["accuracy"] for row in labels["random"])
        order = sorted(labels, key=lambda label: statistics.fmean(row["accuracy"] for row in labels[label]))
        yield f"\n## {dataset}, {ipc} images per class\n"
        yield from table(HEADER, [row_cells(label, labels[label], control) for label in reversed(order)])
        if (ROOT / "docs/images" / (picture := f"{dataset}-ipc{ipc}-wasserstein.png")).exists():
            yield f"\n![The coreset of the wasserstein row](images/{picture})"


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
    yield "\n## Settings\n"
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
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    return "\n".join([INTRODUCTION.rstrip(), *cells_of(document), *settings_of(document)]) + "\n"


def main() -> None:
    (ROOT / "docs/results.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
