"""How good can one chain be? Long constructions by `bptt`, and every way to use finished coresets.

    python benchmarks/one_chain.py grow ten-recorded-60-masses --data-dir .data --seconds 400 --out grow.jsonl
    python benchmarks/one_chain.py grow ten-recorded-60 --dataset svhn --data-dir .data --out svhn.jsonl
    python benchmarks/one_chain.py samplers FILE ... --sampler psghmc --steps 300 --data-dir .data --out by.jsonl
    python benchmarks/one_chain.py uses cifar10-ipc1-best.safetensors FILE ... --data-dir .data --out uses.jsonl

``grow`` learns images on nine tenths of the training data for a given time and judges them on the last tenth.
``samplers`` samples finished coresets by one kernel after another on training images, which judges the kernels and not
the coresets. ``uses`` alone reads test data: it uses finished coresets as others would (another kernel, step size or
temperature, networks trained by SGD or Adam, other networks at ten images per class), chooses nothing, and ends with a
table of what each way loses against the coreset's own. Each line of the output is one way to sample one coreset: the
mean accuracy of single chains, and of all of them averaged.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

import pseudocoresets as pc
from pseudocoresets.backends import choose_backend
from pseudocoresets.construction.loop import Construction, network_for, run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import faint
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.evaluation.report import control_coreset
from pseudocoresets.evaluation.scores import scores
from pseudocoresets.workflows.evaluate import whole_coreset
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


WINDOWS = {"steps": 60, "horizon": 200, "spread": True, "batch_size": 2048}
MOVING = {"step_size": 0.0125, "momentum": 0.9}
MASSES = {"step_size": 0.02, "momentum": 0.9, "preconditioned": True}
VARIANTS = {
    "one-noise-100-masses": Variant("noise", {**WINDOWS, **MASSES, "steps": 100, "unrolls": 4}),
    "ten-recorded-60": Variant("recorded", {**WINDOWS, **MOVING, "unrolls": 2}, ipc=10),
    "ten-recorded-60-masses": Variant("recorded", {**WINDOWS, **MASSES, "unrolls": 2}, ipc=10),
    "fifty-recorded-60-masses": Variant("recorded", {**WINDOWS, **MASSES, "points_per_step": 125}, ipc=50),
}
TRIED = 100
"""Iterations that tell how long one takes, once those before them have captured it."""


def ways_to_sample(variant: Variant) -> Iterator[dict[str, Any]]:
    """How a grown coreset is sampled, cold and at the preset's temperature of 0.01: as its windows move, and not."""
    names = ("psghmc", "sghmc") if "preconditioned" in variant.options else ("sghmc", "psghmc")
    own, other = ({"sampler": name, "step_size": {"sghmc": 0.0125, "psghmc": 0.02}[name]} for name in names)
    yield from ({**own, "steps": steps} for steps in (300, 1000))
    yield {**other, "steps": 1000}
    yield {**own, "step_size": 0.04, "schedule": "cyclical", "steps": 1600}


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


def judged(coreset: pc.Coreset, data: Dataset, preset: str = "paper", **sampling: Any) -> dict[str, float]:
    """Figures of single chains and of their average, in per cent, sampled cold."""
    samples = pc.sample_posterior(coreset, preset=preset, **sampling)
    found = scores(samples.predict(data.test.images), data.test.labels)
    figures = {"one_chain": 100 * found.chains["accuracy"].mean, "averaged": 100 * found.ensemble["accuracy"]}
    return {name: round(value, 2) for name, value in figures.items()} | {
        name: round(found.ensemble[name], 4) for name in ("nll", "ece")
    }


def grow(
    variant: Variant, name: str, data: Dataset, seconds: float, folder: Path, seed: int
) -> Iterator[dict[str, Any]]:
    """The coreset after as many iterations as the time allows; learning rates fall in the second half of them."""
    began = time.monotonic()
    learning = {"optimiser": "adam", "learning_rate": 5e-3, "averaging": 0.995, "annealing": 0.5, "temperature": 0.01}
    settings = ConstructionSettings(ipc=variant.ipc, seed=seed, **{**learning, **variant.learning})
    initial, backend = start_of(variant, settings, data), choose_backend("auto")
    method = pc.methods.BPTT(**variant.options)

    def constructed(iterations: int, **given: Any) -> Construction:
        learned = replace(settings, iterations=iterations)
        return run_construction(
            data, None, "bptt", method, learned, network=NETWORK, initial=initial, backend=backend, **given
        )

    def keep(_: int, coreset: pc.Coreset) -> None:
        coreset.save(folder / f"{name}-{seed}.safetensors", compact=True)

    constructed(TRIED)
    pace = constructed(TRIED).seconds_per_iteration
    iterations = max(TRIED, int((seconds - time.monotonic() + began) / pace))
    grown = constructed(iterations, watch=keep)
    keep(iterations, grown.coreset)
    milliseconds = round(1e3 * grown.seconds_per_iteration, 1)
    shared = {"variant": name, "seed": seed, "iterations": iterations, "ms_per_iteration": milliseconds}
    for sampling in ways_to_sample(variant):
        yield {**shared, **sampling, **judged(grown.coreset, data, **sampling, mixed_kinds=False)}


def chosen(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of these options that were given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def by_sampler(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each coreset by each kernel, judged on the first training images."""
    few = chosen(options, "chains", "samples")
    for path in options.coresets:
        data = load_dataset(pc.Coreset.load(path).source, options.data_dir)
        seen = replace(data, test=data.train.subset(torch.arange(options.images)), transform=data.transform_source)
        coreset = whole_coreset(pc.Coreset.load(path), data, options.data_dir)
        for sampler, steps in product(options.sampler, options.steps):
            began = time.monotonic()
            found = judged(coreset, seen, preset=options.preset, sampler=sampler, steps=steps, **few)
            seconds = round(time.monotonic() - began, 1)
            yield {"coreset": path.stem, "sampler": sampler, "steps": steps, **few, **found, "seconds": seconds}


OWN_WAY = "own way"
"""As the preset samples it."""
AT_TEN = 10
NETWORKS = ("alexnet", "vgg11", "resnet18")
AT_OTHER_NETWORKS: dict[str, Any] = {"chains": 3, "samples": 5, "steps": 1000}
"""Most are slow, and presets were made for ConvNet."""


def ways_of(coreset: pc.Coreset, preset: str, networks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Ways to use a coreset, by name: first as the preset has it, then as others would."""
    own = pc.preset(preset, coreset.source, max(1, round(coreset.images_per_class)))
    sampling = own.sampling_by(None, coreset.method)
    other = "langevin" if sampling["sampler"] == "sghmc" else "sghmc"
    step, plain = sampling["step_size"], own.sampling_by("langevin", coreset.method)["step_size"]
    point = {
        "SGD with momentum": {},
        "SGD": {"sampler": f"sgd:momentum=0,step_size={plain}"},
        "Adam": {"sampler": "adam"},
    }
    ways = {
        OWN_WAY: {},
        f"{other} for {sampling['sampler']}": {"sampler": other},
        "half the step size": {"step_size": step / 2},
        "twice the step size": {"step_size": 2 * step},
        "temperature 0.1": {"temperature": 0.1},
        "temperature 1": {"temperature": 1.0},
        **{f"point, {name}": {"start": "point", **given} for name, given in point.items()},
    }
    for name in networks:
        ways[f"{name}, cold"] = {"network": name, **AT_OTHER_NETWORKS}
        ways[f"{name}, point"] = {"network": name, "start": "point", **AT_OTHER_NETWORKS}
    return ways


def uses(path: Path, data: Dataset, data_dir: Path, preset: str, images: int, **few: Any) -> Iterator[dict[str, Any]]:
    """Every way of ``ways_of`` on the test data; the average is calibrated on ``images`` training images too."""
    coreset = whole_coreset(pc.Coreset.load(path), data, data_dir)
    networks = NETWORKS if round(coreset.images_per_class) == AT_TEN else ()
    for way, given in ways_of(coreset, preset, networks).items():
        began = time.monotonic()
        try:
            samples = pc.sample_posterior(coreset, preset=preset, **(given | few))
            found = _figures(pc.evaluate(samples, data.test, calibration=data.train, calibration_images=images))
        except pc.PseudocoresetsError as error:
            found = {"failed": str(error)}
        shared = {"coreset": path.stem, "way": way, "given": given | few}
        yield {**shared, **found, "seconds": round(time.monotonic() - began, 1)}


def _figures(report: pc.EvaluationReport) -> dict[str, float]:
    assert report.calibrated is not None
    plain, sharp = report.ensemble, report.calibrated.scores.ensemble
    return {
        "one_chain": round(100 * report.accuracy.mean, 2),
        "deviation": round(100 * report.accuracy.std, 2),
        "averaged": round(100 * plain["accuracy"], 2),
        **{name: round(plain[name], 4) for name in ("nll", "ece")},
        **{f"calibrated_{name}": round(sharp[name], 4) for name in ("nll", "ece")},
        "exponent": round(report.calibrated.exponent.mean, 3),
        "calibration_images": report.calibrated.images,
    }


def table_of_uses(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Each way beside the coreset's own: how many points of accuracy one chain, and the average, lose."""
    columns = (
        "coreset | way | one chain % | loses | averaged % | loses | NLL | ECE | calibrated NLL | calibrated ECE | s"
    )
    yield f"| {columns} |"
    yield f"|{'---|' * len(columns.split(' | '))}"
    own = {row["coreset"]: row for row in rows if row["way"] == OWN_WAY and "failed" not in row}
    for row in rows:
        if "failed" in row:
            yield f"| {row['coreset']} | {row['way']} | {row['failed']} |"
            continue
        cells = [row["coreset"], row["way"]]
        for name in ("one_chain", "averaged"):
            lost = f"{own[row['coreset']][name] - row[name]:.1f}" if row["coreset"] in own else ""
            cells += [f"{row[name]:.1f}", lost if row["way"] != OWN_WAY else ""]
        cells += [f"{row[name]:.3f}" for name in ("nll", "ece", "calibrated_nll", "calibrated_ece")]
        yield f"| {' | '.join([*cells, str(row['seconds'])])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    growing, using, sampling = (commands.add_parser(name) for name in ("grow", "uses", "samplers"))
    growing.add_argument("variant", choices=VARIANTS)
    growing.add_argument("--dataset", default=Variant.dataset)
    growing.add_argument("--seconds", type=float, default=400, help="time of the construction")
    growing.add_argument("--seed", type=int, default=0)
    sampling.add_argument("--sampler", action="append", required=True, help="a kernel with its options; several times")
    sampling.add_argument("--steps", type=int, action="append", required=True, help="of each sampler; several times")
    using.add_argument("--steps", type=int)
    sampling.add_argument("--images", type=int, default=5000, help="training images that are judged on")
    for one in (using, sampling):
        one.add_argument("coresets", type=Path, nargs="+", metavar="FILE")
        one.add_argument("--preset", default="best", help="that the coresets were made by")
        one.add_argument("--chains", type=int, help="in place of the preset's")
        one.add_argument("--samples", type=int)
    using.add_argument("--test-images", type=int, help="only the first so many, for a trial")
    using.add_argument("--calibration", type=int, default=5000, help="training images that calibrate the average")
    for one in (growing, using, sampling):
        one.add_argument("--data-dir", type=Path, default=Path("data"))
        one.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "uses":
        print("\n".join(table_of_uses(list(written(rows_of_uses(options), options.out)))))
        return
    if options.command == "samplers":
        list(written(by_sampler(options), options.out))
        return
    data = load_dataset(options.dataset, options.data_dir).holding_out(0.1)
    variant = replace(VARIANTS[options.variant], dataset=options.dataset)
    name = f"{options.dataset}-{options.variant}"
    rows = grow(variant, name, data, options.seconds, options.out.parent, options.seed)
    list(written(rows, options.out))


def rows_of_uses(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    few = chosen(options, "chains", "samples", "steps")
    for path in options.coresets:
        data = load_dataset(pc.Coreset.load(path).source, options.data_dir)
        if options.test_images is not None:
            first = data.test.subset(torch.arange(options.test_images))
            data = replace(data, test=first, transform=data.transform_source)
        yield from uses(path, data, options.data_dir, options.preset, options.calibration, **few)


def written(rows: Iterable[dict[str, Any]], out: Path) -> Iterator[dict[str, Any]]:
    """The same rows, each kept and shown as soon as it is there."""
    for row in rows:
        with out.open("a") as file:
            file.write(json.dumps({**row, **provenance()}) + "\n")
        print(json.dumps(row), flush=True)
        yield row


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
