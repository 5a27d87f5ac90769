"""What do the recorded coresets give away, and what do shadows say of the ways that coresets are made?

    python benchmarks/privacy_audit.py --data-dir data --only mnist --parts ordinary private --out privacy_mnist.json

Three parts, of which `--parts` chooses:

recorded   every file of results/coresets of these data sets: neighbours, start images and the attack by a threshold on
           the loss, beside random real images and a network trained on all data
ordinary   LiRA on coresets by `--methods`, with few iterations (those of the recorded files would take two minutes for
           each shadow)
private    LiRA on coresets by private `dm`, with the noise of results/private_guarantees.json for each epsilon

`--files` attacks other files with shadows, made by their own record at its full length.
All are made from data that are normalised by the same public constants, so that the shadows of the naive ways are made
once for all of them. At first each is attacked with FEWEST shadows; how many more there is time for in `--minutes` is
then known, and all are attacked again with more. Each result is written as soon as it is there, and a table of all at
the end. Shadows are kept in `--shadows-dir`: a second call goes on from them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pseudocoresets as pc
from pseudocoresets.core.progress import Silent
from pseudocoresets.dp import Guarantee
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.privacy.origin import training_data
from pseudocoresets.privacy.report import (
    ALL_DATA,
    ATTACK_COLUMNS,
    POINT_COLUMNS,
    RANDOM,
    attack_rows,
    point_rows,
)
from pseudocoresets.sources.experts import Experts
from pseudocoresets.workflows.cells import markdown_table
from pseudocoresets.workflows.provenance import provenance

RESULTS = Path(__file__).parent / "results"
PARTS = ("recorded", "ordinary", "private")
FEWEST, MOST = 6, 64
"""Shadows."""
SHARE_OF_TIME = 0.85
"""Of what is left after the first attacks, spent on the second ones."""
ITERATIONS = {"bptt": 60, "dm": 1000}
PRIVATE_ITERATIONS = 500
PRIVATE_LEARNING = {"initialisation": "noise", "optimiser": "adam", "learning_rate": 0.05, "annealing": 0.5}


class Subject(NamedTuple):
    """A coreset to be attacked with shadows, and the data that it was made from."""

    name: str
    coreset: pc.Coreset
    data: pc.Dataset


class Recorder:
    """The document, written after each result, and the time that is left."""

    def __init__(self, out: Path, minutes: float) -> None:
        self._out, self._end = out, time.monotonic() + 60 * minutes
        self._document: dict[str, Any] = {**provenance(), "rows": []}

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def add(self, what: str, report: pc.AuditReport) -> None:
        """Keep and print what an audit found; a later one of the same replaces it."""
        row = {"what": what, **report.as_json()}
        others = [each for each in self._document["rows"] if each["what"] != what]
        self._document["rows"] = [*others, row]
        self._out.write_text(json.dumps(self._document, indent=1) + "\n")
        print(f"\n## {what}, {report.about['shadows']} shadows, {report.seconds:.0f} s\n", flush=True)
        print(*(f"- {finding}" for finding in report.findings()), sep="\n")
        print("", *markdown_table(ATTACK_COLUMNS, attack_rows(row)), sep="\n")
        print("", *markdown_table(POINT_COLUMNS, point_rows(row)), sep="\n", flush=True)

    def table(self) -> list[str]:
        """LiRA on every coreset that was attacked with shadows, and on the naive ways beside the first of each data."""
        rows, naive = [], set()
        for document in self._document["rows"]:
            for row in (row for row in attack_rows(document) if row[2].startswith("LiRA")):
                known = (document["dataset"], row[0], row[2])
                if known not in naive:
                    rows.append([document["what"], str(document["shadows"]), *row])
                    naive |= {known} if row[0] in (RANDOM, ALL_DATA) else set()
        return markdown_table(("coreset", "shadows", *ATTACK_COLUMNS), rows)


class Stopwatch(Silent):
    """When each part of an audit was done."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def advance(self, amount: int = 1, note: str = "") -> None:
        if note.startswith("shadow"):
            self._times.append(time.monotonic())

    @property
    def seconds(self) -> float:
        """Of the shadow that took longest but the first, which waits for kernels to be compiled."""
        return max(later - earlier for earlier, later in pairwise(self._times))


class Bench:
    """The options of a call, and networks trained on each set of data."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._trained = options, {}
        self.recorder = Recorder(options.out, options.minutes)
        sampling = {"samples": 10} if options.steps is None else {"steps": options.steps, "samples": 5}
        self._common = {"images": options.images, "preset": "paper", **sampling}

    def audit(self, coreset: pc.Coreset, data: pc.Dataset, **more: Any) -> pc.AuditReport:
        network = self._options.network or str(coreset.network)
        experts = self._experts(training_data(coreset, data), network)
        return pc.audit(coreset, data, network=network, experts=experts, **self._common, **more)

    def _experts(self, data: pc.Dataset, network: str) -> Experts:
        """One network trained on exactly these data."""
        if data.fingerprint not in self._trained:
            self._trained[data.fingerprint] = pc.train_experts(data, network, 1, self._options.epochs, preset="paper")
        return self._trained[data.fingerprint]

    def subjects(self, name: str, data: pc.Dataset) -> Iterator[Subject]:
        options, data = self._options, data.publicly_normalised()
        network, ipc = options.network or "convnet:depth=3,width=128", options.ipc
        if "ordinary" in options.parts:
            for method in options.methods:
                count = max(1, round(options.share * ITERATIONS[method]))
                made = pc.construct(data, None, method, ipc, network=network, preset="paper", iterations=count)
                yield Subject(f"{name}-ipc{ipc}-{method}-{count}", made, data)
        if "private" in options.parts:
            for entry in json.loads((RESULTS / "private_guarantees.json").read_text()):
                promised = replace(Guarantee.from_json(entry), examples=len(data.train))
                method = PrivateMatching(promised.releases[0].noise_multiplier, options.networks)
                count = max(1, round(options.share * PRIVATE_ITERATIONS))
                made = pc.construct(data, None, method, ipc, network=network, iterations=count, **PRIVATE_LEARNING)
                what = f"{name}-ipc{ipc}-private-dm-epsilon{promised.epsilon:g}"
                yield Subject(what, replace(made, guarantee=promised), data)

    def audit_recorded(self, name: str, data: pc.Dataset) -> None:
        for path in sorted((RESULTS / "coresets").glob(f"{name}-ipc*.safetensors")):
            self.recorder.add(path.stem, self.audit(pc.Coreset.load(path).restored(data), data))

    def attack(self, subjects: list[Subject]) -> None:
        """All with few shadows, then all with as many as there is time for, at most twice as many as before."""
        count, more = 0, FEWEST
        while more > 0:
            count += more
            seconds = sum(self._attack(subject, count) for subject in subjects)
            left = self.recorder.seconds_left
            more = min(count, MOST - count, 2 * int(SHARE_OF_TIME * left / seconds / 2))
            print(f"\n{seconds:.1f} s for a shadow of each, {left:.0f} s left: {more} more", flush=True)
        print("", *self.recorder.table(), sep="\n", flush=True)

    def _attack(self, subject: Subject, shadows: int) -> float:
        """Seconds for each more shadow."""
        name, coreset, data = subject
        watch, folder = Stopwatch(), self._options.shadows_dir / data.name
        report = self.audit(coreset, data, shadows=shadows, folder=folder, progress=watch)
        self.recorder.add(name, report)
        return watch.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="*", default=["mnist", "cifar10"], help="Data sets.")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--files", nargs="*", type=Path, default=[], help="Coreset files to attack with shadows too.")
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--images", type=int, default=5000, help="Of each kind that are asked about.")
    parser.add_argument("--epochs", type=int, default=10, help="Of the training on all data.")
    parser.add_argument("--methods", nargs="*", default=list(ITERATIONS), choices=list(ITERATIONS), help="Ordinary.")
    parser.add_argument("--ipc", type=int, default=10)
    parser.add_argument("--share", type=float, default=1.0, help="Of all iterations, for a short try.")
    parser.add_argument("--networks", type=int, default=32, help="Of private dm.")
    parser.add_argument("--network", help="Another network than the recorded one, for a short try.")
    parser.add_argument("--steps", type=int, help="Of the sampler, for a short try.")
    parser.add_argument("--shadows-dir", type=Path, default=Path("privacy-shadows"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    bench, subjects = Bench(options), []
    for name in options.only:
        data = pc.load_dataset(name, options.data_dir)
        if "recorded" in options.parts:
            bench.audit_recorded(name, data)
        subjects += bench.subjects(name, data)
    for path in options.files:
        coreset = pc.Coreset.load(path)
        subjects.append(Subject(path.stem, coreset, pc.load_dataset(coreset.source, options.data_dir)))
    bench.attack(subjects)


if __name__ == "__main__":
    main()
