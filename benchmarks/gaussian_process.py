"""Pseudo-coresets of a Gaussian process beside Titsias' inducing points, of the same number, on the same data.

    python benchmarks/gaussian_process.py --out benchmarks/results/gaussian_process.json

200 points on [-4, 4] with a gap, y = sin(2 x) + 0.4 cos(5 x) + noise of deviation 0.2; lengthscale 0.6, scale 1. The
places of the inducing points maximise Titsias' bound by L-BFGS from evenly spaced quantiles. Both divergences from the
full posterior are in closed form.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from pseudocoresets._io.files import write_json
from pseudocoresets.construction import construct
from pseudocoresets.core.gaussian import Gaussian, kl_divergence
from pseudocoresets.core.points import Rows
from pseudocoresets.core.progress import Silent
from pseudocoresets.models import GaussianProcess
from pseudocoresets.sources.gaussian_fit import GaussianFit, fit_gaussian
from pseudocoresets.workflows.provenance import provenance

SIZES = (4, 8, 12, 16, 24)
METHODS = ("uniform", "giga", "moments", "gaussian-psvi")


def draw_data(seed: int) -> Rows:
    stream = np.random.default_rng(seed)
    x = stream.uniform(-4, 4, 260)
    x = x[(x < 0.5) | (x > 1.8)][:200]
    y = np.sin(2 * x) + 0.4 * np.cos(5 * x) + 0.2 * stream.standard_normal(len(x))
    return Rows(x[:, None], y)


def best_inducing(model: GaussianProcess, rows: Rows, size: int) -> Gaussian:
    def negative_bound(places: np.ndarray) -> tuple[float, np.ndarray]:
        z = torch.from_numpy(places)[:, None].requires_grad_()
        value = -model.inducing(rows.x, rows.y, z).bound
        (gradient,) = torch.autograd.grad(value, z)
        return float(value.detach()), gradient[:, 0].numpy()

    start = np.quantile(rows.x.numpy(), (np.arange(size) + 0.5) / size)
    found = minimize(negative_bound, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return model.inducing(rows.x, rows.y, torch.from_numpy(found.x)[:, None]).posterior


def divergences(full: Gaussian, other: Gaussian, seconds: float) -> dict[str, Any]:
    forward, reverse = float(kl_divergence(full, other)), float(kl_divergence(other, full))
    return {"kl_full_other": forward, "kl_other_full": reverse, "processor_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, model = draw_data(0), GaussianProcess(0.6, noise_scale=0.2, bound=6.0, functions=48)
    fit = GaussianFit(model, rows)
    record: dict[str, Any] = {"provenance": provenance(), "n": len(rows), "parameters": model.size, "sizes": {}}
    for size in SIZES:
        began = time.process_time()
        inducing = best_inducing(model, rows, size)
        cells = {"inducing points": divergences(fit.gaussian, inducing, time.process_time() - began)}
        for method in METHODS:
            began = time.process_time()
            points = construct(rows, fit, method, model=model, size=size, progress=Silent()).points
            cells[method] = divergences(fit.gaussian, fit_gaussian(model, points), time.process_time() - began)
        record["sizes"][str(size)] = cells
        write_json(options.out, record)
        print(
            size,
            {name: (round(cell["kl_full_other"], 4), round(cell["kl_other_full"], 4)) for name, cell in cells.items()},
            flush=True,
        )


if __name__ == "__main__":
    main()
