"""Do coresets predict like the full data's posterior? Function-space agreement with long HMC runs.

A network small enough that Hamiltonian Monte Carlo on all the data mixes in function space is sampled by several
chains: the reference. Every other row is compared with it on the test inputs by the agreement of the top class and the
total variation between predictive averages (``pc.agreement``). The model is the same everywhere: the likelihood without
augmentation, the prior N(0, s^2 I), temperature 1, and coreset weights n / m, so that a coreset of all the data would
be the reference. Coresets are sampled by the same HMC from fresh initialisations.

A coreset's average is also compared once it is calibrated: raised to the power, one number, that makes the training
labels most probable.

Rows beside coresets: two halves of the reference (what is left of Monte Carlo error), a second run on the full data
with another seed, and a deep ensemble of networks trained on the full data by SGD.

Methods learn as the preset ``quick`` has it, with the model's temperature and prior and no augmentation. ``cd`` from
draws, ``fkl-hmc`` from draws and ``pcd`` take their samples of the full posterior from the second run, never from the
reference. Test inputs are used for the comparison alone.

All that is computed is kept in ``--out``; the same command goes on where it stopped, or after ``--minutes``.

    python benchmarks/function_space.py --case digits --out runs/function-space --minutes 10
    python benchmarks/function_space.py --case fashion-mnist --device cuda --data-dir data --out runs/function-space
    python benchmarks/function_space.py --case digits --out runs/function-space --table
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets._io.files import read_tensors, write_json, write_tensors
from pseudocoresets.backends import Backend, choose_backend
from pseudocoresets.core.energy import Energy, Target
from pseudocoresets.core.points import Points
from pseudocoresets.core.progress import Silent
from pseudocoresets.core.seeds import derive_seed, generator_for
from pseudocoresets.data.dataset import Dataset, Split, stratified_split
from pseudocoresets.evaluation import all_metrics
from pseudocoresets.evaluation.calibration import fitted_exponent, sharpened
from pseudocoresets.kernels import HMC, run_chain, warm_up
from pseudocoresets.kernels.diagnostics import function_space_diagnostics
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network
from pseudocoresets.sources.experts import Experts, ExpertSettings, load_experts, train_experts
from pseudocoresets.sources.experts.store import TrainedOn
from pseudocoresets.workflows.provenance import provenance

PREDICTED_AT_ONCE = 8


@dataclass(frozen=True)
class Lengths:
    """Of an HMC run: trajectories to adapt, trajectories to drop, and those that are kept, of each chain."""

    chains: int
    warmup: int
    dropped: int
    draws: int


@dataclass(frozen=True)
class Case:
    """A data set, a network, a prior, and how long everything is sampled."""

    dataset: str
    network: str
    prior_scale: float
    leapfrog_steps: int
    first_step: float
    """From which a warm-up adapts the step size of the leapfrog, in units where the energy is per datum."""
    reference: Lengths
    second: Lengths
    coreset: Lengths
    training_images: int | None = None
    """A stratified part of the training data of this size stands for the full data; None: all."""
    block: int = 25
    """Draws between two savings."""
    expert_epochs: int = 12
    ensemble: Mapping[str, Any] = field(
        default_factory=lambda: {"count": 10, "epochs": 50, "learning_rate": 0.01, "momentum": 0.9, "batch_size": 32}
    )
    pcd_iterations: int = 200


CASES = {
    "digits": Case(
        *("digits", "mlp:depth=1,width=32", 0.5, 50, 0.5),
        *(Lengths(4, 25, 25, 250), Lengths(4, 25, 25, 125), Lengths(8, 25, 10, 50)),
    ),
    "fashion-mnist": Case(
        *("fashion-mnist", "lenet", 0.2, 250, 0.02),
        *(Lengths(4, 20, 20, 60), Lengths(4, 20, 20, 30), Lengths(4, 20, 10, 30)),
        training_images=1000,
        block=10,
        ensemble={"count": 10, "epochs": 20, "learning_rate": 0.01, "momentum": 0.9, "batch_size": 64},
        pcd_iterations=150,
    ),
}

FROM_DRAWS = {"expert_epochs": 0, "max_start_epoch": None}
ADAM = {"optimiser": "adam", "annealing": 0.5}
RATES = {1: 0.01}
"""Of images that are learned from draws, by images per class, where it is not 0.03: fewer are moved further by the same
gradient, and from 0.03 on the energies of the chains grow."""


@dataclass(frozen=True)
class Row:
    """A way to make a coreset."""

    name: str
    method: str
    source: str = "experts"
    """``experts`` trained by SGD, ``draws`` of the second run, or ``none``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def rows_of(case: Case) -> list[Row]:
    hmc = f"hmc:leapfrog_steps={min(100, case.leapfrog_steps)}"
    step = 0.6 * case.first_step
    persistent = {"chains": 16, "kernel": hmc, "step_size": step, **FROM_DRAWS}
    learning = {**ADAM, "iterations": case.pcd_iterations}
    return [
        Row("random real images", "random", "none"),
        Row("herding", "herding"),
        Row("k-center", "k-center"),
        Row("forgetting", "forgetting"),
        Row("dm", "dm", "none"),
        Row("gm", "gm", "none"),
        Row("mtt", "mtt"),
        Row("wasserstein", "wasserstein"),
        Row("fkl", "fkl"),
        Row("rkl", "rkl"),
        Row("psvi", "psvi"),
        Row("cd", "cd"),
        Row("bptt", "bptt", "none", settings={"iterations": 300}),
        Row(
            "cd, from draws",
            "cd",
            "draws",
            {"chains": 16, "steps": 1, "sigma": 0.0, "kernel": hmc, "step_size": step, **FROM_DRAWS},
            learning,
        ),
        Row("pcd, from draws", "pcd", "draws", persistent, learning),
        Row(
            "pcd, from draws, weights learned",
            "pcd",
            "draws",
            persistent,
            {**learning, "learn_weights": True, "weight_learning_rate": 0.03},
        ),
    ]


class OutOfTime(Exception):
    """The time that was asked for is over; what is done is kept."""


class Bench:
    """One case in its folder."""

    def __init__(self, case: Case, folder: Path, device: torch.device, data_dir: str, minutes: float) -> None:
        self.case, self.folder, self.device, self.data_dir = case, folder, device, data_dir
        self._until = time.monotonic() + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------------------------------------------------- the model
    @cached_property
    def data(self) -> Dataset:
        data = pc.load_dataset(self.case.dataset, self.data_dir)
        if self.case.training_images is None:
            return data
        kept = stratified_split(data.train.labels, self.case.training_images / len(data.train), 0)[1]
        return replace(data, train=data.train.subset(kept), transform=data.transform_source)

    @cached_property
    def backend(self) -> Backend:
        return choose_backend(self.device)

    @cached_property
    def network(self) -> Network:
        return pc.build_network(self.case.network, self.data.shape, len(self.data.classes))

    def target(self, points: Points) -> Target:
        energy = Energy(Classifier(self.network, self.case.prior_scale), len(self.data.train))
        x, y, weights = (each.to(self.device) for each in (points.x, points.y, points.weights))
        return self.backend.target(energy, Points(x, y, weights))

    def predicted(self, thetas: Tensor, images: Tensor | None = None) -> Tensor:
        """Probabilities of the test inputs, or of other images, (draws, n, classes) on the host."""
        images = self.data.test.images if images is None else images
        inputs = self.data.transform.to(self.device)(images.to(self.device))
        with torch.no_grad():
            groups = [self.network.logits(part.to(self.device), inputs) for part in thetas.split(PREDICTED_AT_ONCE)]
            return torch.cat([group.softmax(-1).cpu() for group in groups])

    def unseen(self, coreset: pc.Coreset) -> Split:
        """The training data without images that the coreset holds as they are."""
        train = self.data.train
        held = {row.numpy().tobytes() for row in coreset.x.cpu()}
        inputs = self.data.transform(train.images)
        return train.subset(torch.tensor([i for i, row in enumerate(inputs) if row.numpy().tobytes() not in held]))

    # ---------------------------------------------------------------------------------------------------------- chains
    def full_run(self, name: str, lengths: Lengths) -> tuple[Tensor, dict[str, Any]]:
        """Draws (chains, draws, size) of the full data's posterior, block by block, and how it went."""
        train = self.data.train
        points = Points(self.data.transform(train.images), train.labels, torch.ones(len(train)))
        target = self.target(points)
        blocks: list[Tensor] = []
        about: list[dict[str, Any]] = []
        for number in range(lengths.draws // self.case.block):
            path = self.folder / f"{name}-{number:03d}.safetensors"
            if not path.is_file():
                before = None if not blocks else (blocks[-1][:, -1], about[-1]["step_size"])
                self._save_block(path, target, before, lengths, name, number)
            tensors, document = read_tensors(path)
            blocks.append(tensors["draws"])
            about.append(document)
        summary = {
            **asdict(lengths),
            "acceptance": statistics.fmean(each["acceptance"] for each in about),
            "step_size": about[0]["step_size"],
            "seconds": sum(each["seconds"] for each in about),
        }
        return torch.cat(blocks, 1), summary

    def _save_block(
        self,
        path: Path,
        target: Target,
        before: tuple[Tensor, float] | None,
        lengths: Lengths,
        name: str,
        number: int,
    ) -> None:
        self._require_time()
        began, seed = time.perf_counter(), derive_seed(0, "function space", name)
        generator = generator_for(seed, "block", number, device=self.device)
        kernel, dropped = HMC(self.case.first_step, self.case.leapfrog_steps), 0
        if before is None:
            start = self.network.initialise(seed, lengths.chains, self.device)
            kernel, start = warm_up(kernel, start, target, lengths.warmup, generator)
            dropped = lengths.dropped
        else:
            start, kernel = before[0].to(self.device), replace(kernel, step_size=before[1])
        keep = range(dropped + 1, dropped + self.case.block + 1)
        chain = run_chain(kernel, start, target, keep[-1], generator, keep)
        assert chain.acceptance is not None
        document = {
            "step_size": kernel.step_size,
            "acceptance": float(chain.acceptance.mean()),
            "seconds": time.perf_counter() - began,
        }
        write_tensors(path, {"draws": chain.kept.transpose(0, 1).cpu()}, document)

    def sampled(self, coreset: pc.Coreset, seed: int) -> tuple[Tensor, dict[str, Any]]:
        """What the draws of a coreset's posterior predict (chains, draws, n, classes), and how it went.

        The exponent is the power of their average that calibrates it on the training data.
        """
        lengths, target = self.case.coreset, self.target(coreset.points)
        generator = generator_for(seed, "coreset", device=self.device)
        start = self.network.initialise(derive_seed(seed, "coreset"), lengths.chains, self.device)
        kernel = HMC(self.case.first_step, self.case.leapfrog_steps)
        kernel, start = warm_up(kernel, start, target, lengths.warmup, generator)
        keep = range(lengths.dropped + 1, lengths.dropped + lengths.draws + 1)
        chain = run_chain(kernel, start, target, keep[-1], generator, keep)
        assert chain.acceptance is not None
        draws = chain.kept.transpose(0, 1)
        predicted = self.predicted(draws.flatten(0, 1)).unflatten(0, draws.shape[:2])
        known = self.unseen(coreset)
        exponent = fitted_exponent(self.predicted(draws.flatten(0, 1), known.images).mean(0), known.labels)
        how = {"acceptance": float(chain.acceptance.mean()), "step_size": kernel.step_size, "exponent": exponent}
        return predicted, how

    # -------------------------------------------------------------------------------------------------------- the rows
    @cached_property
    def reference(self) -> Tensor:
        """The predictive average of the reference, computed once."""
        path = self.folder / "reference-average.safetensors"
        if path.is_file():
            return pc.Predictions.load(path).on(self.data.test)
        draws, about = self.full_run("reference", self.case.reference)
        chains = torch.stack([self.predicted(chain) for chain in draws])
        half = len(chains) // 2
        self._record("reference", {**about, **self._judged(chains, chains.flatten(0, 1).mean(0))})
        halves = pc.agreement(chains[:half], chains[half:]).as_json()
        self._record("two halves of the reference", {"agreement": halves})
        pc.Predictions.from_probabilities(chains, self.data.test, about).save(path)
        return pc.Predictions.load(path).probabilities

    @cached_property
    def draws(self) -> Experts:
        """The second run on the full data, whose draws methods may take for samples of the full posterior."""
        draws, about = self.full_run("second", self.case.second)
        if not self._results("full data"):
            chains = torch.stack([self.predicted(chain) for chain in draws])
            self._record("full data, another run", {**about, **self._judged(chains, self.reference)})
        known = TrainedOn(self.data.name, self.data.fingerprint)
        return Experts(self.network, known, ExpertSettings(epochs=draws.shape[1] - 1), list(draws))

    @cached_property
    def experts(self) -> Experts:
        """As the preset ``quick`` trains them, without augmentation."""
        own = dict(pc.preset("quick", self.data.name).experts) | {"epochs": self.case.expert_epochs}
        return self._trained("experts", {"count": 5, **own})

    def _trained(self, name: str, settings: Mapping[str, Any]) -> Experts:
        """Networks trained on the full data without augmentation, or those that the folder holds."""
        folder = self.folder / name
        if (folder / "store.json").is_file() and len(known := load_experts(folder)) == settings["count"]:
            return known
        return train_experts(
            self.data,
            self.case.network,
            out=folder,
            device=self.device,
            backend=self.backend,
            progress=Silent(),
            augment=False,
            **settings,
        )

    def ensemble(self) -> None:
        trained = self._trained("ensemble", self.case.ensemble)
        ends = torch.stack([trained.snapshot(each, -1) for each in range(len(trained))])
        probabilities = self.predicted(ends)[:, None]
        self._record(f"deep ensemble of {len(trained)}, full data", self._judged(probabilities, self.reference))

    def coreset(self, row: Row, ipc: int, seed: int) -> pc.Coreset:
        path = self.folder / f"{row.name.replace(', ', '-').replace(' ', '-')}-{ipc}-{seed}.safetensors"
        if path.is_file():
            return pc.Coreset.load(path)
        own: dict[str, Any] = {"temperature": 1.0, "prior_scale": self.case.prior_scale, "augment": False}
        if row.method in SELECTIONS:
            own = {}
        made = pc.construct(
            self.data,
            {"experts": lambda: self.experts, "draws": lambda: self.draws, "none": lambda: None}[row.source](),
            row.method,
            ipc,
            network=None if row.source != "none" else self.case.network,
            method_options=row.options,
            checkpoint=path.with_suffix(".checkpoint"),
            checkpoint_seconds=20.0,
            device=self.device,
            backend=self.backend,
            progress=Silent(),
            seed=seed,
            **own | dict(row.settings) | ({"learning_rate": RATES.get(ipc, 0.03)} if row.source == "draws" else {}),
        )
        made.save(path)
        return made

    def run(self, rows: Sequence[Row], sizes: Sequence[int], seeds: int) -> None:
        assert self.reference is not None
        assert self.draws is not None
        if not self._results("deep ensemble"):
            self._require_time()
            self.ensemble()
        for seed in range(seeds):
            for ipc in sizes:
                for row in rows:
                    if not self._is_known(row, ipc, seed):
                        self._require_time()
                        self._row(row, ipc, seed)

    def _is_known(self, row: Row, ipc: int, seed: int) -> bool:
        """Whether the row is there, with all that is looked at today."""
        path = self.folder / self._file(row.name, ipc, seed)
        return path.is_file() and bool({"calibrated", "failed"} & set(json.loads(path.read_text())))

    def _row(self, row: Row, ipc: int, seed: int) -> None:
        began = time.perf_counter()
        try:
            coreset = self.coreset(row, ipc, seed)
        except pc.PseudocoresetsError as error:
            self._record(row.name, {"failed": str(error)}, ipc, seed)
            return
        making = time.perf_counter() - began
        predicted, how = self.sampled(coreset, seed)
        seconds = {"construction_seconds": making, "seconds": time.perf_counter() - began - making}
        sharp = sharpened(predicted.flatten(0, 1).double().mean(0), how["exponent"])
        calibrated = {"calibrated": self._scored(sharp, self.reference)}
        self._record(row.name, {**how, **seconds, **self._judged(predicted, self.reference), **calibrated}, ipc, seed)

    # -------------------------------------------------------------------------------------------------------- results
    def _judged(self, chains: Tensor, reference: Tensor) -> dict[str, Any]:
        """Scores of the average of (chains, draws, n, classes), its agreement, and whether the chains agree."""
        return {
            **self._scored(chains.flatten(0, 1).double().mean(0), reference),
            "diagnostics": function_space_diagnostics(chains).as_json() if chains.shape[1] > 1 else None,
        }

    def _scored(self, average: Tensor, reference: Tensor) -> dict[str, Any]:
        alike = pc.agreement(average, reference).as_json()
        return {"agreement": alike, **all_metrics(average, self.data.test.labels)}

    def _record(self, name: str, found: Mapping[str, Any], ipc: int = 0, seed: int = 0) -> None:
        document = {"row": name, "ipc": ipc, "seed": seed, **found}
        write_json(self.folder / self._file(name, ipc, seed), document)
        alike = found.get("agreement", {})
        scores = [f"{key} {value:.4f}" for key, value in alike.items()] or [str(found.get("failed"))]
        print(f"{name}, ipc {ipc}, seed {seed}: {', '.join(scores)}", flush=True)

    @staticmethod
    def _file(name: str, ipc: int, seed: int) -> str:
        return f"row-{name.replace(', ', '-').replace(' ', '-')}-{ipc}-{seed}.json"

    def _results(self, start: str = "") -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in sorted(self.folder.glob("row-*.json"))]
        return [each for each in found if each["row"].startswith(start)]

    def _require_time(self) -> None:
        if time.monotonic() > self._until:
            raise OutOfTime

    def document(self) -> dict[str, Any]:
        """All rows, for benchmarks/results."""
        about = {**asdict(self.case), "size": self.network.size, "training_images": len(self.data.train)}
        return {**provenance(), "device": _device_name(self.device), "case": about, "rows": self._results()}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Mean and deviation over seeds, one line for each row and size, as Markdown."""
    yield "| | images per class | top class % | total variation | calibrated | accuracy % | NLL | ECE |"
    yield "|---|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for each in rows:
        groups.setdefault((each["row"], each["ipc"]), []).append(each)
    for (name, ipc), found in sorted(groups.items(), key=lambda item: (item[0][1], _variation(item[1]))):
        ran = [each for each in found if "agreement" in each]
        if not ran:
            yield f"| {name} | {ipc or ''} | failed | | | | | |"
            continue
        alike = [_spread([each["agreement"][key] for each in ran], *form) for key, form in FORMS.items()]
        sharp = [each["calibrated"]["agreement"]["total_variation"] for each in ran if "calibrated" in each]
        alike.append(_spread(sharp, *FORMS["total_variation"]))
        scores = [_spread([each[key] for each in ran if key in each], *form) for key, form in SCORES.items()]
        yield f"| {name} | {ipc or ''} | {' | '.join(alike + scores)} |"


FORMS = {"top_class": (100, 1), "total_variation": (1, 3)}
SCORES = {"accuracy": (100, 1), "nll": (1, 3), "ece": (1, 3)}


def _variation(found: Sequence[Mapping[str, Any]]) -> float:
    return statistics.fmean(each.get("agreement", {}).get("total_variation", 2.0) for each in found)


def _spread(values: Sequence[float], factor: float, decimals: int) -> str:
    if not values:
        return ""
    mean = f"{factor * statistics.fmean(values):.{decimals}f}"
    return mean if len(values) == 1 else f"{mean} ± {factor * statistics.stdev(values):.{decimals}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=CASES, default="digits")
    parser.add_argument("--out", type=Path, default=Path("runs/function-space"))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", help="names of rows in their order, separated by semicolons; default: all")
    parser.add_argument("--sizes", default="1,10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--training-images", type=int, help="of the case, in place of its own number")
    parser.add_argument("--results", type=Path, help="also write all rows to this file")
    parser.add_argument("--table", action="store_true", help="only print the table of what there is")
    given = parser.parse_args()
    case = CASES[given.case]
    if given.training_images is not None:
        case = replace(case, training_images=given.training_images)
    bench = Bench(case, given.out / given.case, torch.device(given.device), given.data_dir, given.minutes)
    known = {row.name: row for row in rows_of(case)}
    rows = list(known.values()) if given.rows is None else [known[name] for name in given.rows.split(";")]
    torch.backends.cudnn.allow_tf32 = False
    try:
        if not given.table:
            bench.run(rows, [int(size) for size in given.sizes.split(",")], given.seeds)
    except OutOfTime:
        print(f"Stopped after {given.minutes:g} minutes; the same command goes on.")
    document = bench.document()
    if given.results is not None:
        write_json(given.results, document)
    print("\n".join(table(document["rows"])))


if __name__ == "__main__":
    main()
