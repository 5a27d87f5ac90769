"""The same CIFAR-10 cell constructed and judged on the fast and on the plain path, several seeds each.

    python benchmarks/fast_against_plain.py --data-dir .data --out benchmarks/results/fast_against_plain.json

Judged on a validation part of the training data. Experts are shared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from provenance import provenance
from pseudocoresets.backends.fused import set_precision
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.evaluation import evaluate
from pseudocoresets.inference.sampling import sample_posterior
from pseudocoresets.methods import ContrastiveDivergence
from pseudocoresets.sources.experts import Experts, train_experts

METHOD = ContrastiveDivergence(expert_epochs=5, max_start_epoch=2, steps=50, step_size=0.03)
SAMPLING = {"steps": 300, "samples": 10, "chains": 3, "step_size": 0.05, "temperature": 0.1}


def cell(data: Dataset, experts: Experts, seed: int, iterations: int) -> dict[str, Any]:
    began = time.monotonic()
    settings = ConstructionSettings(ipc=1, iterations=iterations, learning_rate=100.0, seed=seed)
    made = run_construction(data, experts, "cd", METHOD, settings)
    report = evaluate(sample_posterior(made.coreset, seed=seed, **SAMPLING), data.test)
    return {
        "seed": seed,
        "accuracy": report.accuracy.mean,
        "bma_accuracy": report.ensemble["accuracy"],
        "bma_nll": report.ensemble["nll"],
        "milliseconds_per_iteration": 1e3 * made.seconds_per_iteration,
        "seconds": time.monotonic() - began,
    }


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: {
            "mean": statistics.fmean(c[name] for c in cells),
            "std": statistics.stdev(c[name] for c in cells),
        }
        for name in ("accuracy", "bma_accuracy", "bma_nll")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    data = load_dataset("cifar10", options.data_dir).holding_out()
    experts = train_experts(data, "convnet:depth=3,width=128", 4, epochs=8)
    results: dict[str, Any] = {"provenance": provenance(), "iterations": options.iterations}
    for precision in ("auto", "float32"):
        set_precision(precision)
        cells = [cell(data, experts, seed, options.iterations) for seed in range(options.seeds)]
        results[precision] = {"cells": cells, **summary(cells)}
        options.out.write_text(json.dumps(results, indent=2) + "\n")
        print(precision, json.dumps(summary(cells)), [round(c["milliseconds_per_iteration"], 1) for c in cells])


if __name__ == "__main__":
    main()
