"""What a step of a captured trajectory costs, forwards and backwards, and a gradient on real data.

python benchmarks/matching_speed.py --out matching_speed.json

ConvNet D3W128 on a GPU, CIFAR-10 shapes, medians of 20 replays of a block. The adjoint computes two gradients a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from provenance import provenance
from pseudocoresets.backends.fused import FusedBackend
from pseudocoresets.core.state import AdjointState, at_rest
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import build_network

SHAPE = (3, 32, 32)
SHAPES = ((1, 10, 80), (4, 10, 40), (1, 100, 30), (4, 100, 30), (1, 125, 60), (1, 500, 40))
"""Chains, images, steps."""


def milliseconds(call: Callable[[], object], repeats: int = 20) -> float:
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def measure(chains: int, images: int, steps: int) -> dict[str, float]:
    device, backend = torch.device("cuda:0"), FusedBackend("cuda:0")
    network = build_network("convnet:depth=3,width=128", SHAPE, 10)
    length = backend._trajectory_block_length(steps, images)
    began = time.perf_counter()
    runner = backend._captured_trajectory(network, device, chains, images, length, soft=False)
    torch.cuda.synchronize()
    warm_up = time.perf_counter() - began
    assert runner is not None, "the trajectory could not be captured"
    theta = network.initialise(0, chains, device)
    y = torch.arange(images, device=device) % 10
    runner.set_rates(torch.tensor(0.02, device=device), 0.0, momentum=0.9)
    x, factors = torch.randn(length, images, *SHAPE, device=device), torch.full((images,), 1 / images, device=device)
    adjoint, model = torch.randn_like(theta), Classifier(network)
    spacing = torch.full((chains,), 0.01, device=device)
    real, labels = torch.randn(512, *SHAPE, device=device), torch.arange(512, device=device) % 10
    forwards = milliseconds(lambda: runner.forwards(at_rest(theta), x, y, factors))
    backwards = milliseconds(lambda: runner.backwards(AdjointState(adjoint, adjoint), spacing))
    return {
        "chains": chains,
        "images": images,
        "steps": length,
        "forward_us_a_step": 1e3 * forwards / length,
        "adjoint_us_a_step": 1e3 * backwards / length,
        "slopes_of_512_ms": milliseconds(
            lambda: backend.mean_energies_and_gradients(model, theta, real, labels)
        ),
        "warm_up_s": warm_up,
        "peak_MiB": torch.cuda.max_memory_allocated() / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    rows = []
    for chains, images, steps in SHAPES:
        rows.append(measure(chains, images, steps))
        print(rows[-1], flush=True)
        out.write_text(json.dumps(provenance() | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
