"""Do the coreset files give the figures that are recorded for them? Each is sampled again as its record says.

    python benchmarks/recorded_coresets.py --data-dir .data --only mnist fashion-mnist --out again.json

For every file in results/coresets: the row of results/paper_cells.json of the same cell, method and seed, the way of
sampling that held-out data chose there, five chains, and the test data, beside the row's own figures. Chains are other
random numbers on another device, so single chains differ by their own spread. Beside the plain average stands the one
that training images calibrate.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import pseudocoresets as pc
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.workflows.provenance import provenance

HERE = Path(__file__).parent / "results"
SPACING = 40
"""Steps between two positions of a chain that a record keeps, from the second half of its steps on."""


def record_of(coreset: pc.Coreset, dataset: str, ipc: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of the same cell, method and seed whose construction came last."""
    wanted = {"dataset": dataset, "ipc": ipc, "method": coreset.method, "label": coreset.method, "seed": coreset.seed}
    return next(row for row in reversed(rows) if "test" in row and wanted.items() <= row.items())


def sampling_of(row: dict[str, Any]) -> dict[str, Any]:
    """The settings of the record's plan with what held-out data chose, and the samples that it kept."""
    chosen = row["chosen"]
    settings = {**row["plan"]["sampling"], **chosen["sampling"], "steps": chosen["steps"]}
    settings.pop("seed", None)
    if settings.get("schedule", "constant") == "constant":
        settings |= {"burn_in": 0.5, "samples": max(1, chosen["steps"] // SPACING // 2)}
    return settings


def again(path: Path, data: Dataset, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The file's figures now, beside those of its record."""
    dataset, size, _ = path.stem.rsplit("-", 2)
    coreset = pc.Coreset.load(path).restored(data)
    row = record_of(coreset, dataset, int(size.removeprefix("ipc")), rows)
    samples = pc.sample_posterior(coreset, preset="paper", **sampling_of(row))
    report = pc.evaluate(samples, data.test, calibration=data.train)
    assert report.calibrated is not None
    chains, averaged, sharp = report.accuracy, report.ensemble, report.calibrated
    return {
        "file": path.name,
        "one_chain": round(100 * chains.mean, 2),
        "chains": [round(100 * chain, 2) for chain in chains.values],
        "averaged": round(100 * averaged["accuracy"], 2),
        "nll": round(averaged["nll"], 4),
        "ece": round(averaged["ece"], 4),
        "calibrated": {name: round(sharp.scores.ensemble[name], 4) for name in ("nll", "ece")}
        | {"exponent": round(sharp.exponent.mean, 3), "images": sharp.images},
        "recorded": {
            "one_chain": round(100 * row["test"]["chain_accuracy"], 2),
            "averaged": round(100 * row["test"]["accuracy"], 2),
            "nll": round(row["test"]["nll"], 4),
            "ece": round(row["test"]["ece"], 4),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="*", help="Data sets; all of them by default.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = json.loads((HERE / "paper_cells.json").read_text())["rows"]
    document: dict[str, Any] = {**provenance(), "rows": []}
    data: dict[str, Dataset] = {}
    for path in sorted((HERE / "coresets").glob("*.safetensors")):
        name = path.stem.rsplit("-", 2)[0]
        if options.only and name not in options.only:
            continue
        if name not in data:
            data = {name: load_dataset(name, options.data_dir)}
        document["rows"].append(again(path, data[name], rows))
        options.out.write_text(json.dumps(document, indent=1) + "\n")
        print(json.dumps(document["rows"][-1]), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(8)
    main()
