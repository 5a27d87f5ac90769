"""What do the recorded coresets give away, and what do shadows say of the ways that coresets are made?

    python benchmarks/privacy_audit.py --data-dir data --only mnist --out privacy_mnist.json

Three parts, of which `--parts` chooses:

recorded   every file of results/coresets of these data sets: neighbours, start images and the attack by a threshold on
           the loss, beside random real images and a network trained on all data
ordinary   LiRA on a coreset by `--method` with `--iterations` (those of the recorded files would take two minutes for
           each shadow)
private    LiRA on coresets by private `dm`, with the noise of results/private_guarantees.json for each epsilon

`--files` attacks other files with shadows, made by their own record at its full length. More and more shadows are made
until `--minutes` have passed, in all parts and data sets alike. Each result is written as soon as it is there. Shadows
are kept in `--shadows-dir`: a second call goes on from them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pseudocoresets as pc
from pseudocoresets.dp import Guarantee
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.privacy.origin import training_data
from pseudocoresets.privacy.report import ATTACK_COLUMNS, POINT_COLUMNS, attack_rows, point_rows
from pseudocoresets.sources.experts import Experts
from pseudocoresets.workflows.cells import markdown_table
from pseudocoresets.workflows.provenance import provenance

RESULTS = Path(__file__).parent / "results"
PARTS = ("recorded", "ordinary", "private")
SHADOW_COUNTS = (6, 8, 12, 16, 24, 32, 48, 64)
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


class Bench:
    """The options of a call, and networks trained on each set of data."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._trained = options, {}
        self.recorder = Recorder(options.out, options.minutes)
        sampling = {} if options.steps is None else {"steps": options.steps, "samples": 5}
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
        options = self._options
        network, ipc = options.network or "convnet:depth=3,width=128", options.ipc
        if "ordinary" in options.parts:
            made = pc.construct(
                data, None, options.method, ipc, network=network, preset="paper", iterations=options.iterations
            )
            yield Subject(f"{name}-ipc{ipc}-{options.method}-{options.iterations}", made, data)
        if "private" in options.parts:
            for entry in json.loads((RESULTS / "private_guarantees.json").read_text()):
                promised = replace(Guarantee.from_json(entry), examples=len(data.train))
                method = PrivateMatching(promised.releases[0].noise_multiplier, options.networks)
                secret = data.publicly_normalised()
                count = options.private_iterations
                made = pc.construct(secret, None, method, ipc, network=network, iterations=count, **PRIVATE_LEARNING)
                what = f"{name}-ipc{ipc}-private-dm-epsilon{promised.epsilon:g}"
                yield Subject(what, replace(made, guarantee=promised), data)

    def audit_recorded(self, name: str, data: pc.Dataset) -> None:
        for path in sorted((RESULTS / "coresets").glob(f"{name}-ipc*.safetensors")):
            self.recorder.add(path.stem, self.audit(pc.Coreset.load(path).restored(data), data))

    def attack(self, subjects: list[Subject]) -> None:
        """More and more shadows, as long as the next ones are expected to fit into the time left."""
        seconds = dict.fromkeys((subject.name for subject in subjects), 0.0)
        for before, count in zip((0, *SHADOW_COUNTS), SHADOW_COUNTS, strict=False):
            for name, coreset, data in subjects:
                if self.recorder.seconds_left < (count - before) * seconds[name]:
                    return
                began, folder = time.monotonic(), self._options.shadows_dir / name
                self.recorder.add(name, self.audit(coreset, data, shadows=count, folder=folder))
                seconds[name] = (time.monotonic() - began) / (count - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="*", default=["mnist", "cifar10"], help="Data sets.")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--files", nargs="*", type=Path, default=[], help="Coreset files to attack with shadows too.")
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--images", type=int, default=5000, help="Of each kind that are asked about.")
    parser.add_argument("--epochs", type=int, default=30, help="Of the training on all data.")
    parser.add_argument("--method", default="bptt")
    parser.add_argument("--ipc", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--private-iterations", type=int, default=500)
    parser.add_argument("--networks", type=int, default=64, help="Of private dm.")
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
