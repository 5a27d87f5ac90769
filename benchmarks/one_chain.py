"""How good can one chain be? Long constructions by `bptt`, and samplers of finished coresets, on held-out data.

    python benchmarks/one_chain.py grow noise-40-400 --data-dir .data --seconds 400 --out grow.jsonl
    python benchmarks/one_chain.py samplers --dataset cifar10 --data-dir .data --out samplers.jsonl
    python benchmarks/one_chain.py uses cifar10-ipc1-best.safetensors --data-dir .data --out uses.jsonl

``grow`` learns images on nine tenths of the training data and judges them on the last tenth every ``--every``
iterations; ``samplers`` samples the recorded coresets, which were made on the same nine tenths, in several ways. Each
line of the output is one way to sample one coreset: the mean accuracy of single chains, and of all of them averaged.
Test data are not read but by ``uses``, which samples a finished coreset as others would, and chooses nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import pseudocoresets as pc
from pseudocoresets.construction.loop import network_for, run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import faint
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.evaluation.report import control_coreset
from pseudocoresets.evaluation.scores import scores
from pseudocoresets.workflows.provenance import provenance

HERE = Path(__file__).parent / "results" / "coresets"
NETWORK = "convnet:depth=3,width=128"


@dataclass(frozen=True)
class Variant:
    """One kind of construction: where it starts, and what differs from `bptt` and from Adam at a rate of 0.005."""

    start: str
    options: dict[str, Any] = field(default_factory=dict)
    learning: dict[str, Any] = field(default_factory=dict)
    ipc: int = 1
    dataset: str = "cifar10"


LONG = {"steps": 40, "horizon": 400, "batch_size": 1024, "spread": True}
SHORT = {"steps": 60, "horizon": 200, "batch_size": 1024, "spread": True}
MOVING = {"step_size": 0.0125, "momentum": 0.9}
SLOW = {"learning_rate": 2e-3}
VARIANTS = {
    "real-40-400": Variant("real", LONG),
    "noise-40-400": Variant("noise", LONG),
    "noise-60-200": Variant("noise", SHORT),
    "noise-60-200-four": Variant("noise", {**SHORT, "unrolls": 4}),
    "recorded-40-400-eight": Variant("recorded", {**LONG, "unrolls": 8, "batch_size": 2048}, SLOW),
    "noise-60-200-large": Variant("noise", {**SHORT, "unrolls": 4, "batch_size": 2048}),
    "noise-100-200-large": Variant("noise", {**SHORT, "steps": 100, "unrolls": 4, "batch_size": 2048}),
    "ten-recorded-100-200-moving": Variant("recorded", {**SHORT, **MOVING, "steps": 100, "unrolls": 2}, SLOW, ipc=10),
    "ten-noise-100-200-moving": Variant("noise", {**SHORT, **MOVING, "steps": 100, "unrolls": 2}, ipc=10),
    "ten-noise-60-200-four": Variant("noise", {**SHORT, "unrolls": 4}, ipc=10),
    "ten-noise-60-200-moving": Variant("noise", {**SHORT, **MOVING, "unrolls": 4}, ipc=10),
}


WAYS: tuple[dict[str, Any], ...] = (
    {"sampler": "langevin", "step_size": 0.05, "steps": 300},
    {"sampler": "langevin", "step_size": 0.05, "steps": 1000},
    {"sampler": "langevin", "step_size": 0.025, "steps": 1000},
    {"sampler": "sghmc", "step_size": 0.0125, "steps": 300},
    {"sampler": "sghmc", "step_size": 0.0125, "steps": 1000},
)
"""How a growing coreset is sampled, cold, at the preset's temperature of 0.01."""


def start_of(variant: Variant, settings: ConstructionSettings, data: Dataset) -> pc.Coreset:
    """Real images, noise of unit norm, or the recorded coreset."""
    if variant.start == "recorded":
        found = pc.Coreset.load(HERE / f"{variant.dataset}-ipc{variant.ipc}-bptt.safetensors")
        return replace(found, transform=data.transform)
    real = control_coreset(settings, data, network_for(None, NETWORK, data).spec, 0)
    if variant.start == "real":
        return real
    noise = torch.randn(real.x.shape, generator=torch.Generator().manual_seed(settings.seed))
    return replace(real, x=faint(noise), indices=None)


def judged(coreset: pc.Coreset, data: Dataset, **sampling: Any) -> dict[str, float]:
    """Held-out figures in per cent of single chains and of their average, sampled cold."""
    samples = pc.sample_posterior(coreset, preset="paper", **sampling)
    found = scores(samples.predict(data.test.images), data.test.labels)
    figures = {"one_chain": 100 * found.chains["accuracy"].mean, "averaged": 100 * found.ensemble["accuracy"]}
    return {name: round(value, 2) for name, value in figures.items()} | {
        name: round(found.ensemble[name], 4) for name in ("nll", "ece")
    }


def grow(name: str, data: Dataset, every: int, seconds: float, folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """The coreset of a variant, judged every so many iterations until the time is over."""
    variant, began = VARIANTS[name], time.monotonic()
    learning = {"optimiser": "adam", "learning_rate": 5e-3, "averaging": 0.995, "temperature": 0.01, **variant.learning}
    settings = ConstructionSettings(ipc=variant.ipc, seed=seed, **learning)
    initial = start_of(variant, settings, data)
    method = pc.methods.BPTT(**variant.options)
    iterations = 0
    while time.monotonic() - began < seconds:
        iterations += every
        made = run_construction(
            data,
            None,
            "bptt",
            method,
            replace(settings, iterations=iterations),
            network=NETWORK,
            checkpoint=folder / f"{name}-{seed}.checkpoint",
            initial=initial,
        )
        made.coreset.save(folder / f"{name}-{seed}.safetensors", compact=True)
        milliseconds = round(1e3 * made.seconds_per_iteration, 1)
        shared = {"variant": name, "seed": seed, "iterations": iterations, "ms_per_iteration": milliseconds}
        for sampling in WAYS:
            yield {**shared, **sampling, **judged(made.coreset, data, **sampling, mixed_kinds=False)}


SAMPLERS: tuple[dict[str, Any], ...] = (
    {"sampler": "langevin", "step_size": 0.1},
    {"sampler": "sghmc", "step_size": 0.0125},
    {"sampler": "sghmc", "step_size": 0.04, "schedule": "cyclical", "samples": 40},
    {"sampler": "sghmc", "step_size": 0.04, "schedule": "cyclical", "samples": 40, "steps": 4000},
    {"sampler": "sghmc", "step_size": 0.1, "schedule": "cyclical", "samples": 40, "steps": 2000},
    {"sampler": "sghmc", "step_size": 0.2, "schedule": "cyclical", "samples": 40, "steps": 4000},
    {"sampler": "langevin", "step_size": 0.5, "schedule": "cyclical", "samples": 40, "steps": 4000},
    {"sampler": "langevin", "step_size": 1.0, "schedule": "cyclical", "samples": 40, "steps": 4000},
    {"sampler": "langevin", "step_size": 0.1, "temperature": 0.1},
    {"sampler": "langevin", "step_size": 0.1, "temperature": 1.0},
    {"sampler": "sghmc", "step_size": 0.0125, "temperature": 0.1, "steps": 2000},
    {"sampler": "sghmc", "step_size": 0.0125, "temperature": 1.0, "steps": 2000},
)


def sweep(name: str, data: Dataset, ipcs: list[int]) -> Iterator[dict[str, Any]]:
    """Every way of ``SAMPLERS`` on the recorded coresets of a data set."""
    for ipc in ipcs:
        coreset = pc.Coreset.load(HERE / f"{name}-ipc{ipc}-bptt.safetensors")
        coreset = replace(coreset, transform=data.transform)
        for sampling in SAMPLERS:
            began = time.monotonic()
            try:
                found = judged(coreset, data, **sampling)
            except pc.PseudocoresetsError as error:
                found = {"failed": str(error)}
            yield {"coreset": f"{name} {ipc}", **sampling, **found, "seconds": round(time.monotonic() - began, 1)}


USES: tuple[dict[str, Any], ...] = (
    {"step_size": 0.05},
    {"step_size": 0.025},
    {"sampler": "sghmc", "step_size": 0.0125},
    {"step_size": 0.05, "temperature": 0.1},
    {"step_size": 0.05, "temperature": 1.0},
    {"start": "point"},
)
"""Other ways to use a coreset that was learned for Langevin steps of 0.05 at a temperature of 0.01."""


def uses(path: Path, data: Dataset, chains: int) -> Iterator[dict[str, Any]]:
    """Every way of ``USES`` on the test data."""
    coreset = pc.Coreset.load(path).restored(data)
    for sampling in USES:
        yield {"coreset": path.name, **sampling, **judged(coreset, data, chains=chains, samples=2, **sampling)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    growing, sampling, using = (commands.add_parser(name) for name in ("grow", "samplers", "uses"))
    growing.add_argument("variant", choices=VARIANTS)
    growing.add_argument("--every", type=int, default=1500, help="iterations between two judgements")
    growing.add_argument("--seconds", type=float, default=400, help="begin no further part after this time")
    growing.add_argument("--seed", type=int, default=0)
    sampling.add_argument("--dataset", default="cifar10")
    sampling.add_argument("--ipc", type=int, nargs="+", default=[1, 10, 50])
    using.add_argument("coreset", type=Path)
    using.add_argument("--dataset", default="cifar10")
    using.add_argument("--chains", type=int, default=3)
    for one in (growing, sampling, using):
        one.add_argument("--data-dir", type=Path, default=Path("data"))
        one.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    name = VARIANTS[options.variant].dataset if options.command == "grow" else options.dataset
    data = load_dataset(name, options.data_dir)
    if options.command != "uses":
        data = data.holding_out(0.1)
    if options.command == "grow":
        rows = grow(options.variant, data, options.every, options.seconds, options.out.parent, options.seed)
    elif options.command == "samplers":
        rows = sweep(name, data, options.ipc)
    else:
        rows = uses(options.coreset, data, options.chains)
    for row in rows:
        with options.out.open("a") as file:
            file.write(json.dumps({**row, **provenance()}) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
