"""Seconds per iteration of the condensation methods on one GPU, beside their authors' formulation as a plain loop.

Random images of CIFAR-10's shape and number, ConvNet of depth 3 and width 128, 256 real images per class. Writes
condensation.json below --out after every measurement, so that a run which is cut short keeps what it has.

    python benchmarks/condensation.py --out "$OUT" --seconds 90
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pseudocoresets.backends import Backend, choose_backend
from pseudocoresets.construction.learner import Learner
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.energy import Energy, uniform_weights
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.methods import Problem, RealData, build_gradient_method
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.presets import preset
from pseudocoresets.workflows.published_loops import PUBLISHED_LOOPS

CLASSES, CHECK_INTERVAL = 10, 10
WITHOUT_AUGMENTATION = ("gm", "cafe")
MOST_EPOCHS = {"cafe": 10, "cafe-dsa": 10}
"""The authors' loop may train for longer; both sides stop here, so that they do the same work."""


def construction(name: str, ipc: int, network: Network, real: RealData, backend: Backend) -> Callable[[], None]:
    """One iteration of ours, with the preset's options and the learner's own work."""
    device = real.rows(torch.zeros(1, dtype=torch.int64))[0].device
    chosen = preset("paper", "cifar10", ipc)
    options = chosen.method_options(name) | ({"most_epochs": MOST_EPOCHS[name]} if name in MOST_EPOCHS else {})
    method = build_gradient_method(name, options)
    settings = ConstructionSettings(**chosen.construction_for(name) | {"ipc": ipc})
    labels = torch.arange(CLASSES).repeat_interleave(ipc)
    points = Points(torch.randn(len(labels), 3, 32, 32), labels, uniform_weights(len(labels), len(real)))
    learner = Learner(Parameterisation(points), method, settings, device)
    problem = Problem(
        Energy(Classifier(network), len(real)),
        real_data=lambda: real,
        augmentation=dsa(flippable=True),
        backend=backend,
    )
    randomness = Randomness.for_purpose(0, "construct", device=device)

    def step() -> None:
        randomness.reseed(0, "construct", learner.iteration)
        learner.step(method, problem, randomness)
        if learner.iteration % CHECK_INTERVAL == 0:
            learner.check()

    return step


def published(name: str, ipc: int, network: Network, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    """One iteration of the authors' formulation."""
    options = preset("paper", "cifar10", ipc).method_options(name)
    augmentation = None if name in WITHOUT_AUGMENTATION else dsa(flippable=True)
    matches = 1 if name == "dm" else options.get("matches", 10)
    epochs = MOST_EPOCHS.get(name, options.get("epochs", 50))
    return PUBLISHED_LOOPS[name](network, images, labels, ipc, augmentation, matches=matches, epochs=epochs)


def milliseconds(step: Callable[[], None], warm_up: int, seconds: float, whole: int) -> tuple[float, int]:
    """The mean of as many iterations as fit, in whole rounds of ``whole``, after a warm-up."""
    for _ in range(warm_up):
        step()
    _wait()
    began, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - began < seconds:
        for _ in range(whole):
            step()
        count += whole
        _wait()
    return 1e3 * (time.perf_counter() - began) / count, count


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--methods", default="dm,gm,dsa,cafe,cafe-dsa")
    parser.add_argument("--ipc", default="10,1,50")
    parser.add_argument("--seconds", type=float, default=90.0, help="After which nothing new is begun.")
    parser.add_argument("--each", type=float, default=3.0, help="Seconds that a measurement takes at least.")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--network", default="convnet:depth=3,width=128")
    given = parser.parse_args()
    began = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = build_network(given.network, (3, 32, 32), CLASSES)
    images, labels = torch.randn(given.images, 3, 32, 32, device=device), torch.arange(given.images, device=device)
    labels = labels % CLASSES
    real, backend = RealData(images, labels, lambda chosen: chosen), choose_backend(device)
    name_of_device = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    found: list[dict[str, object]] = []
    for ipc in map(int, given.ipc.split(",")):
        for name in given.methods.split(","):
            if time.perf_counter() - began > given.seconds:
                print("out of time before", name, ipc)
                continue
            whole = 10 if name == "dm" or ipc == 1 else min(ipc, 10)
            before = time.perf_counter()
            ours, count = milliseconds(construction(name, ipc, network, real, backend), 3, given.each, whole)
            took = time.perf_counter() - before
            memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
            row: dict[str, object] = {
                "method": name,
                "ipc": ipc,
                "ours_ms": ours,
                "iterations": count,
                "seconds_with_warm_up": took,
                "peak_bytes_so_far": memory,
                "device": name_of_device,
            }
            loop = published(name, ipc, network, images, labels)
            theirs, _ = milliseconds(loop, 1, given.each / 2, whole if ipc == 1 or name == "dm" else 2)
            row |= {"published_ms": theirs, "ratio": theirs / ours}
            found.append(row)
            print(json.dumps(row), flush=True)
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / "condensation.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
