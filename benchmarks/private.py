"""Accuracy of differentially private coresets under the protocol `point`, beside what is published.

    python benchmarks/private.py --data-dir .data --out private.json --coresets private-coresets    one H200, 12 minutes
    python benchmarks/private.py --only cifar10 --minutes 4
    python benchmarks/private.py --calibrate                                   anew: results/private_guarantees.json

For each data set and epsilon the training data are read by `dm`'s noisy release, once with all networks and once with a
quarter of them, which the noise disturbs less. Each coreset is computed from one of the two and has its guarantee:

    dm         images learned from noise, or from faint noise, by matching the released class means
    dm, bptt   LARGE images per class by `dm`, which then stand for the data: `bptt` learns the few from them

A tenth of the training data is held out before anything else. The way with the highest accuracy on that tenth is tried
on the test data, once, and its coreset is kept, compact; the held-out accuracy of all is in the file. What is released
does not depend on the tenth; that one of them is chosen by it is not accounted for, and neither are the settings here,
as in the published figures.
What is worth most comes first: epsilon 1 before 10, both sizes by `dm` before anything else. A step that is not
expected to end before `--minutes` have passed, as the same step took before, is left out.
The noise for each budget was found by dp-accounting and is read from results/private_guarantees.json, because the
machine with the GPU does not have that package.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.backends import choose_backend
from pseudocoresets.construction.loop import image_task
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.devices import resolve_device
from pseudocoresets.core.progress import Silent
from pseudocoresets.data import Dataset, Split
from pseudocoresets.dp import Budget, Guarantee, Release, calibrated
from pseudocoresets.evaluation.metrics import all_metrics
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.networks import Network
from pseudocoresets.workflows.provenance import provenance

GUARANTEES = Path(__file__).parent / "results" / "private_guarantees.json"
DELTA = 1e-5
EPSILONS = (1.0, 10.0)
SIZES = (10, 50)
LARGE = 100
PUBLISHED = {
    "mnist": {"NDPDC": (93.1, 94.1), "DP-MERF": (75.0, 84.4), "Dosser with auxiliary images": (96.4, 96.7)},
    "fashion-mnist": {"NDPDC": (77.7, 78.8), "DP-MERF": (65.5, 71.3), "Dosser with auxiliary images": (80.1, 83.1)},
    "cifar10": {"NDPDC": (39.4, 42.3), "Dosser with auxiliary images": (50.6, 52.3)},
}
"""Per cent at 10 and 50 images per class, epsilon 1, delta 1e-5."""
MATCHING = {"optimiser": "adam", "learning_rate": 0.05, "annealing": 0.5}
DM = "dm"
MATCHING_ITERATIONS = {10: 1500, 50: 1500, LARGE: 1000}
BPTT = {"steps": 40, "step_size": 0.0125, "momentum": 0.9, "horizon": 400, "spread": True, "batch_size": 512}
BPTT_BY_SIZE = {10: {}, 50: {"points_per_step": 125}}
BPTT_LEARNING = {"optimiser": "adam", "learning_rate": 0.005, "averaging": 0.99, "annealing": 0.5, "temperature": 0.01}
BPTT_ITERATIONS = {10: 400, 50: 200}


@dataclass(frozen=True)
class FromRelease(PrivateMatching):
    """Matches what was released before, so that coresets of all sizes share one reading of the data."""

    kept: ClassVar[dict[str, Tensor]] = {}

    def release(self, network: Network, problem: Problem, device: torch.device) -> dict[str, Tensor]:
        return self.kept


@dataclass(frozen=True)
class Way:
    """One form of `dm`: from which start, and how much of the networks are released."""

    start: str = "noise"
    share: float = 1.0


WAYS = {DM: Way(), "dm, quarter": Way(share=0.25), "dm, faint start": Way("faint-noise")}
EXPECTED = {"dm 10": 10.0, "dm 50": 20.0, f"dm {LARGE}": 20.0, "bptt 10": 40.0, "bptt 50": 40.0, "real": 10.0}
"""Seconds on an H200, until a step of the kind was made."""


class Clock:
    """The time that is left, and how long each kind of step took."""

    def __init__(self, minutes: float) -> None:
        self._end, self._seconds = time.monotonic() + 60 * minutes, dict(EXPECTED)

    def allows(self, *kinds: str) -> bool:
        """Whether a step of each of these kinds is expected to end in time."""
        wanted = sum(self._seconds[kind] for kind in kinds)
        if self._end - time.monotonic() >= wanted:
            return True
        print(f"no time for {' and '.join(kinds)}: {wanted:.0f} s", flush=True)
        return False

    @contextmanager
    def step(self, kind: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[kind] = time.monotonic() - began


@dataclass(frozen=True)
class Scale:
    """How much work a run does; the small one only shows that the script works."""

    networks: int = 100
    chains: int = 5
    steps: int = 1000
    share: float = 1.0
    """Of all iterations."""
    network: str = "convnet"
    images: int | None = None
    """Training images that are kept; all where None."""

    def iterations(self, number: int) -> int:
        return max(2, round(self.share * number))


SMALL = Scale(networks=4, chains=2, steps=10, share=0.005, network="mlp:depth=1,width=16", images=500)


class Cell:
    """One data set and one epsilon: a release, and the coresets that are made of it."""

    def __init__(self, data: Dataset, test: Split, scale: Scale, device: torch.device) -> None:
        self.data, self.test, self.scale, self.device = data, test, scale, device
        self.network = pc.build_network(scale.network, data.shape, len(data.classes))
        self.backend = choose_backend(device)
        self.mixed = data.name != "cifar10"
        began = time.monotonic()
        about, _ = image_task(data, None, self.network, "dm", pc.methods.DistributionMatching())
        self.problem = about.problem(ConstructionSettings(), device, self.backend)
        self.sums = PrivateMatching(0.0, scale.networks).sums(self.network, self.problem, device)
        self.seconds = {"reading the data": round(time.monotonic() - began, 1)}
        self._released: dict[tuple[float, int], tuple[Guarantee, dict[str, Tensor]]] = {}

    def release(self, guarantee: Guarantee, share: float = 1.0) -> None:
        """Publish the sums with noise, or take what was published; all that follows is computed from it."""
        self.networks = max(1, round(share * self.scale.networks))
        known = guarantee.epsilon, self.networks
        if known not in self._released:
            method = PrivateMatching(guarantee.releases[0].noise_multiplier, self.networks)
            published = method.published(*self._sums_of(self.networks), len(self.data.train))
            self._released[known] = replace(guarantee.renewed(), examples=len(self.data.train)), published
        self.guarantee, FromRelease.kept = self._released[known]

    def _sums_of(self, networks: int) -> tuple[Tensor, Tensor]:
        """Those of the first of the networks, scaled as if there were no others."""
        total, centres = self.sums
        features = centres.shape[1]
        own = total[:, : networks * features] * math.sqrt(self.scale.networks / networks)
        return torch.cat([own, total[:, -1:]], 1), centres[:networks]

    def matched(self, ipc: int, start: str) -> pc.Coreset:
        method = FromRelease(self.guarantee.releases[0].noise_multiplier, self.networks)
        iterations, learning = self.scale.iterations(MATCHING_ITERATIONS[ipc]), MATCHING | {"initialisation": start}
        return self._made(self.data, method, ipc, iterations, learning)

    def distilled(self, large: pc.Coreset, start: pc.Coreset, ipc: int) -> pc.Coreset:
        method = pc.methods.BPTT(**BPTT, **BPTT_BY_SIZE[ipc], augment_real=True)
        if self.scale.share < 1:
            method = pc.methods.BPTT(steps=4, horizon=8, chains=2, batch_size=32)
        iterations = self.scale.iterations(BPTT_ITERATIONS[ipc])
        return self._made(large.as_data(), method, ipc, iterations, BPTT_LEARNING | {"mixed_kinds": self.mixed}, start)

    def _made(
        self,
        data: Dataset,
        method: Any,
        ipc: int,
        iterations: int,
        learning: dict[str, Any],
        initial: pc.Coreset | None = None,
    ) -> pc.Coreset:
        made = pc.construct(
            data,
            None,
            method,
            ipc,
            network=self.network,
            iterations=iterations,
            initial=initial,
            device=self.device,
            backend=self.backend,
            progress=Silent(),
            **learning,
        )
        return replace(made, guarantee=self.guarantee)

    def sampled(self, coreset: pc.Coreset) -> pc.PosteriorSamples:
        return pc.sample_posterior(
            coreset,
            start="point",
            chains=self.scale.chains,
            steps=self.scale.steps,
            samples=1,
            mixed_kinds=self.mixed,
            preset="paper",
            device=self.device,
            backend=self.backend,
            progress=Silent(),
        )


def accuracies(samples: pc.PosteriorSamples, split: Split) -> list[float]:
    """In per cent, of each network."""
    probabilities = samples.predict(split.images)
    labels = split.labels.to(probabilities.device)
    return [round(100 * float(all_metrics(chain.mean(0), labels)["accuracy"]), 2) for chain in probabilities]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


class Record:
    """The rows so far, written after each."""

    def __init__(self, out: Path, coresets: Path, device: torch.device) -> None:
        self._out, self._coresets = out, coresets
        self.rows: list[dict[str, Any]] = []
        self._document: dict[str, Any] = {
            "provenance": provenance(device=device),
            "protocol": "point",
            "published": PUBLISHED,
            "settings": {
                "dm": MATCHING,
                "dm iterations": MATCHING_ITERATIONS,
                "bptt": BPTT,
                "bptt learning": BPTT_LEARNING,
            },
            "rows": self.rows,
        }

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.write()
        self.show(row)

    def write(self) -> None:
        self._out.write_text(json.dumps(self._document, indent=1) + "\n")

    @staticmethod
    def show(row: dict[str, Any]) -> None:
        shown = {name: f"{mean(values):.1f}" for name, values in row["accuracy"].items()}
        print(row["dataset"], row["epsilon"], row["ipc"], row["way"], shown, f"{row['seconds']:.0f} s", flush=True)

    def keep(self, row: dict[str, Any], coreset: pc.Coreset) -> None:
        """The coreset of a cell, in the place of an earlier one."""
        name = f"{row['dataset']}-ipc{row['ipc']}-epsilon{row['epsilon']:g}.safetensors"
        coreset.save(self._coresets / name, compact=True)


class Block:
    """One data set at one epsilon: every way and size that there is time for, and the test of the best of each size."""

    def __init__(self, cell: Cell, promised: Guarantee, record: Record, clock: Clock) -> None:
        self._cell, self._promised, self._record, self._clock = cell, promised, record, clock
        self._best: dict[int, tuple[dict[str, Any], pc.PosteriorSamples]] = {}

    def run(self) -> None:
        for ipc in SIZES:
            self._match(ipc, DM)
        for way in (name for name in WAYS if name != DM):
            self._match(SIZES[0], way)
        if self._best:
            chosen = self._best[SIZES[0]][0]["way"]
            if chosen != DM:
                self._match(SIZES[1], chosen)
            self._distil(chosen)
        for row, samples in self._best.values():
            row["accuracy"]["test"] = accuracies(samples, self._cell.test)
            self._record.write()
            self._record.show(row)

    def _match(self, ipc: int, way: str) -> None:
        if self._clock.allows(f"dm {ipc}"):
            self._cell.release(self._promised, WAYS[way].share)
            self._try(f"dm {ipc}", ipc, way, partial(self._cell.matched, ipc, WAYS[way].start))

    def _distil(self, chosen: str) -> None:
        if not self._clock.allows(f"dm {LARGE}", f"bptt {SIZES[0]}"):
            return
        self._cell.release(self._promised, WAYS[chosen].share)
        with self._clock.step(f"dm {LARGE}"):
            large = self._cell.matched(LARGE, WAYS[chosen].start)
        for ipc in SIZES:
            if self._clock.allows(f"bptt {ipc}"):
                start = self._cell.matched(ipc, WAYS[chosen].start)
                self._try(f"bptt {ipc}", ipc, "dm, bptt", partial(self._cell.distilled, large, start, ipc))

    def _try(self, kind: str, ipc: int, way: str, make: Callable[[], pc.Coreset]) -> None:
        """Make a coreset and judge it on held-out data; the best of its size is kept."""
        began = time.monotonic()
        with self._clock.step(kind):
            made = make()
            samples = self._cell.sampled(made)
            found = row(self._cell, self._promised.epsilon, ipc, way, samples, began)
        self._record.add(found)
        before = self._best.get(ipc)
        if before is None or mean(found["accuracy"]["held out"]) > mean(before[0]["accuracy"]["held out"]):
            self._best[ipc] = found, samples
            self._record.keep(found, made)


def table(rows: list[dict[str, Any]]) -> str:
    """Of the ways the one that held-out data chose, its test accuracy beside the published ones."""
    lines = [
        "| data | epsilon | images per class | ours | by | NDPDC at epsilon 1 | real images (not private) |",
        "|" + "---|" * 7,
    ]
    tested = [each for each in rows if "test" in each["accuracy"]]
    real = {(each["dataset"], each["ipc"]): mean(each["accuracy"]["test"]) for each in tested if not each["epsilon"]}
    for each in (each for each in tested if each["epsilon"]):
        dataset, ipc, test = each["dataset"], each["ipc"], each["accuracy"]["test"]
        spread = torch.tensor(test).std().item() if len(test) > 1 else 0.0
        rival, control = PUBLISHED[dataset]["NDPDC"][SIZES.index(ipc)], real.get((dataset, ipc))
        shown = "" if control is None else f"{control:.1f}"
        ours = f"{mean(test):.1f} ± {spread:.1f}"
        lines.append(f"| {dataset} | {each['epsilon']:g} | {ipc} | {ours} | {each['way']} | {rival} | {shown} |")
    return "\n".join(lines)


def run(names: list[str], given: argparse.Namespace) -> None:
    device, scale = resolve_device(given.device), SMALL if given.small else Scale()
    given.coresets.mkdir(parents=True, exist_ok=True)
    record = Record(given.out, given.coresets, device)
    promised = {entry["epsilon"]: Guarantee.from_json(entry) for entry in json.loads(GUARANTEES.read_text())}
    for name in names:
        clock = Clock(given.minutes / len(names))
        loaded = pc.load_dataset(name, given.data_dir, download=False)
        data = loaded.holding_out().publicly_normalised()
        if scale.images is not None:
            kept = data.train.subset(torch.arange(scale.images))
            data = replace(data, train=kept, transform=data.transform_source)
        cell = Cell(data, loaded.test, scale, device)
        print(name, cell.seconds, flush=True)
        for epsilon in EPSILONS:
            Block(cell, promised[epsilon], record, clock).run()
        for ipc in SIZES:
            if clock.allows("real"):
                began = time.monotonic()
                samples = cell.sampled(pc.construct(data, None, "random", ipc, network=cell.network))
                control = row(cell, None, ipc, "real images", samples, began)
                control["accuracy"]["test"] = accuracies(samples, loaded.test)
                record.add(control)
    print(table(record.rows))


def row(
    cell: Cell, epsilon: float | None, ipc: int, way: str, samples: pc.PosteriorSamples, began: float
) -> dict[str, Any]:
    accuracy = {"held out": accuracies(samples, cell.data.test)}
    seconds = round(time.monotonic() - began, 1)
    about = {"dataset": cell.data.name, "epsilon": epsilon, "ipc": ipc, "way": way}
    return {**about, "accuracy": accuracy, "seconds": seconds}


def calibrate() -> None:
    """One release of class sums for each epsilon, for the smallest of the training sets."""
    found = [
        calibrated(Budget(epsilon, DELTA), 45_000, lambda noise: Release("class sums", noise)) for epsilon in EPSILONS
    ]
    GUARANTEES.write_text(json.dumps([guarantee.as_json() for guarantee in found], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=".data")
    parser.add_argument("--out", type=Path, default=Path("private.json"))
    parser.add_argument("--coresets", type=Path, default=Path("private-coresets"))
    parser.add_argument("--only", nargs="*", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--minutes", type=float, default=12.0, help="For all data sets together.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true", help="a minute on a CPU, only to see that it works")
    parser.add_argument("--calibrate", action="store_true")
    given = parser.parse_args()
    calibrate() if given.calibrate else run(given.only, given)


if __name__ == "__main__":
    main()
