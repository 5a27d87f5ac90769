"""What do the recorded coresets give away, and what do shadows say of the method that made them?

    python benchmarks/privacy_audit.py --data-dir data --only mnist cifar10 --out privacy_audit.json

1. Every file of results/coresets of these data sets: neighbours, start images and the attack by a threshold on the
   loss, beside random real images and a network trained on all data.
2. LiRA: a coreset of `--ipc` images per class by `--method` with `--iterations` (those of the recorded files would take
   two minutes for each shadow), and shadows made in the same way, more and more of them until `--minutes` have passed.

Each result is written as soon as it is there. Shadows are kept in `--shadows-dir`: a second call goes on from them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pseudocoresets as pc
from provenance import provenance
from pseudocoresets.privacy.origin import training_data
from pseudocoresets.privacy.report import ATTACK_COLUMNS, POINT_COLUMNS, attack_rows, point_rows
from pseudocoresets.sources.experts import Experts
from pseudocoresets.workflows.cells import markdown_table

RECORDED = Path(__file__).parent / "results" / "coresets"
SHADOW_COUNTS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


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


def experts_of(data: pc.Dataset, network: str, epochs: int, known: dict[str, Experts]) -> Experts:
    """One network trained on exactly these data."""
    if data.fingerprint not in known:
        known[data.fingerprint] = pc.train_experts(data, network, 1, epochs, preset="paper")
    return known[data.fingerprint]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="*", default=["mnist", "cifar10"], help="Data sets.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--images", type=int, default=5000, help="Of each kind that are asked about.")
    parser.add_argument("--epochs", type=int, default=30, help="Of the training on all data.")
    parser.add_argument("--method", default="bptt")
    parser.add_argument("--ipc", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--network", help="Another network than the recorded one, for a short try.")
    parser.add_argument("--steps", type=int, help="Of the sampler, for a short try.")
    parser.add_argument("--skip-recorded", action="store_true")
    parser.add_argument("--shadows-dir", type=Path, default=Path("privacy-shadows"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    recorder = Recorder(options.out, options.minutes)
    sampling = {} if options.steps is None else {"steps": options.steps, "samples": 5}
    common = {"images": options.images, "preset": "paper", **sampling}
    for place, name in enumerate(options.only):
        whole, known = pc.load_dataset(name, options.data_dir), {}
        share = recorder.seconds_left / (len(options.only) - place)
        until = recorder.seconds_left - share
        for path in [] if options.skip_recorded else sorted(RECORDED.glob(f"{name}-ipc*.safetensors")):
            coreset = pc.Coreset.load(path).restored(whole)
            network = options.network or str(coreset.network)
            experts = experts_of(training_data(coreset, whole), network, options.epochs, known)
            recorder.add(path.stem, pc.audit(coreset, whole, network=network, experts=experts, **common))
        attack_method(name, whole, options, recorder, until, known, common)


def attack_method(
    name: str,
    data: pc.Dataset,
    options: argparse.Namespace,
    recorder: Recorder,
    until: float,
    known: dict[str, Experts],
    common: dict[str, Any],
) -> None:
    """More and more shadows while the time left is more than ``until`` and the next ones are expected to need."""
    network = options.network or "convnet:depth=3,width=128"
    experts = experts_of(data, network, options.epochs, known)
    made = pc.construct(
        data,
        method=options.method,
        ipc=options.ipc,
        network=network,
        preset="paper",
        iterations=options.iterations,
    )
    what = f"{name}-ipc{options.ipc}-{options.method}, {options.iterations} iterations"
    folder, done, each = options.shadows_dir / what.replace(", ", "-").replace(" ", "-"), 0, 0.0
    for count in SHADOW_COUNTS:
        if (count - done) * each > recorder.seconds_left - until or recorder.seconds_left < 0:
            break
        began = time.monotonic()
        report = pc.audit(made, data, network=network, experts=experts, shadows=count, folder=folder, **common)
        recorder.add(what, report)
        each, done = (time.monotonic() - began) / (count - done), count


if __name__ == "__main__":
    main()
