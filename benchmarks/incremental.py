"""Coresets of data that keep arriving: the distance to the posterior of all data after 1, 10, 16, 25 and 50 updates.

    python benchmarks/incremental.py --out benchmarks/results/incremental.json

A hundred rows at a time arrive at a coreset with parts of a fixed size, which sees each only once; beside it stand a
coreset of all the data, and one of ten coresets of a tenth of the data each, merged and reduced. KL(full || coreset)
between the Gaussians nearest to the posteriors.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import pseudocoresets as pc
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.coreset import library_versions
from pseudocoresets.models import SmoothModel, build_model
from pseudocoresets.sources.gaussian_fit import fit_gaussian

BATCH, UPDATES, SHOWN = 100, 50, (1, 10, 16, 25, 50)


def data(name: str, seed: int = 0) -> pc.Rows:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH * (UPDATES + 1), 5, generator=generator, dtype=torch.float64)
    x[:, -1] = 1
    eta = x @ torch.tensor([1.0, -0.5, 0.3, 0.2, 0.1], dtype=torch.float64)
    noise = torch.randn(len(x), generator=generator, dtype=torch.float64)
    chance = torch.rand(len(x), generator=generator, dtype=torch.float64)
    targets = {"logistic": (chance < eta.sigmoid()).double(), "gaussian": eta + noise}
    return pc.Rows(x, targets[name] if name in targets else torch.poisson(eta.exp(), generator=generator))


def divergence(model: SmoothModel, rows: pc.Rows, coreset: pc.Coreset) -> float:
    return float(kl_divergence(fit_gaussian(model, rows), fit_gaussian(model, coreset.points)))


def measured(name: str, size: int) -> dict[str, object]:
    rows = data(name)
    model = build_model(name, rows)

    def part(begin: int, end: int) -> pc.Rows:
        return pc.Rows(rows.x[begin:end], rows.y[begin:end])

    began = time.process_time()
    coreset, after = pc.construct(part(0, BATCH), model=model, method="moments", size=size, check=False), {}
    for step in range(1, UPDATES + 1):
        coreset = pc.update(coreset, part(BATCH * step, BATCH * (step + 1)), model)
        if step in SHOWN:
            after[step] = divergence(model, part(0, BATCH * (step + 1)), coreset)
    points, coreset = len(coreset), pc.merge([coreset], model, size)
    seconds = (time.process_time() - began) / UPDATES
    whole = pc.construct(rows, model=model, method="moments", size=size, check=False)
    tenths = [
        pc.construct(pc.Rows(rows.x[i::10], rows.y[i::10]), model=model, method="moments", size=size, check=False)
        for i in range(10)
    ]
    return {
        "model": name,
        "size": size,
        "after_updates": after,
        "points": points,
        "reduced_at_the_end": divergence(model, rows, coreset),
        "seconds_per_update": seconds,
        "of_all_data": divergence(model, rows, whole),
        "merged": divergence(model, rows, pc.merge(tenths)),
        "merged_and_reduced": divergence(model, rows, pc.merge(tenths, model, size)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="logistic,poisson,gaussian")
    parser.add_argument("--sizes", default="10,30")
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for name in options.models.split(","):
        for size in map(int, options.sizes.split(",")):
            records.append(measured(name, size))
            print(json.dumps(records[-1]), flush=True)
            options.out.write_text(json.dumps({"libraries": library_versions(), "records": records}, indent=2) + "\n")


if __name__ == "__main__":
    main()
