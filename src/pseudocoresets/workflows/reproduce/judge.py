"""Making and judging the cells of the paper's tables.

A tenth of the training data is held out from experts and coresets. The images' learning rate of a variant that chooses
it is the one whose short construction is most accurate there, cold and by single chains; test data is judged once.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from pseudocoresets._io.files import make_folder
from pseudocoresets._io.pictures import save_class_rows
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import load_dataset
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.evaluation import evaluate, pooled
from pseudocoresets.evaluation.attacks import attack_chains
from pseudocoresets.evaluation.report import control_coreset
from pseudocoresets.evaluation.shift import Corrupted, evaluate_shift
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.inference.sampling import chain_starts
from pseudocoresets.models.networks import Network, as_network
from pseudocoresets.sources.experts import Experts, train_block
from pseudocoresets.workflows.cells import Document, once
from pseudocoresets.workflows.construct import WorkFiles, construct_plan, write_log
from pseudocoresets.workflows.evaluate import judge, sample_plan, whole_coreset
from pseudocoresets.workflows.place import Workplace
from pseudocoresets.workflows.plan import Plan
from pseudocoresets.workflows.provenance import provenance
from pseudocoresets.workflows.reproduce.cells import VARIANTS, Made, ReproductionCell, slug
from pseudocoresets.workflows.reproduce.cells import network_for as main_network
from pseudocoresets.workflows.reproduce.corrupted import corrupted_images
from pseudocoresets.workflows.reproduce.scale import Scale
from pseudocoresets.workflows.run import experts_for

HELD_OUT = 0.1
CORESET, CONSTRUCTION, PICTURE = "coreset.safetensors", "construction", "coreset.png"
JUDGING = ("sampling", "protocol", "calibration")
PICTURED_CLASSES = 10
"""Of a data set with many, so many evenly spaced classes are in a picture."""


@dataclass(frozen=True)
class Order:
    """What holds for all cells of a reproduction."""

    out: Path
    data_dir: Path = Path("data")
    experts_dir: Path | None = None
    coresets: Path | None = None
    """Recorded coresets, DATASET-ipcN-VARIANT.safetensors or with the method's name, judged instead of new ones."""
    scale: Scale = field(default_factory=Scale)
    command: str | None = None

    def folder(self, cell: ReproductionCell) -> Path:
        return self.out / "cells" / cell.made.slug / cell.slug

    def recorded(self, cell: ReproductionCell) -> Path | None:
        """The recorded coreset of a cell, if there is one: of the variant's own settings, and the first seed."""
        made = cell.made
        plain = made == Made(made.dataset, made.ipc, made.variant, main_network(made.dataset))
        if self.coresets is None or not plain or made.variant == "published":
            return None
        names = dict.fromkeys((made.variant, VARIANTS[made.variant].method))
        paths = (self.coresets / f"{made.dataset}-ipc{made.ipc}-{name}.safetensors" for name in names)
        return next((path for path in paths if path.is_file()), None)

    def anywhere(self) -> Order:
        """The same for a process in another folder."""
        return replace(
            self,
            out=self.out.absolute(),
            data_dir=self.data_dir.absolute(),
            experts_dir=self.experts_dir and self.experts_dir.absolute(),
            coresets=self.coresets and self.coresets.absolute(),
        )

    def expert_folder(self, cell: ReproductionCell) -> Path:
        root, plan = self.experts_dir or self.data_dir / "experts", self.scale.plan(cell)
        trained = f"{plan.experts.epochs}x{plan.experts.batch_size or 'default'}"
        inputs = {None: [], False: ["normalised"], True: ["whitened"]}[VARIANTS[cell.made.variant].whiten]
        return root / slug(plan.dataset, plan.network, trained, *inputs)


@dataclass(frozen=True)
class Data:
    """Training data without the held-out part, with the test data and with that part to choose on."""

    final: Dataset
    held_out: Dataset


class ReproductionJudge:
    """Makes and judges cells; keeps the data sets and experts that it has read."""

    def __init__(self, order: Order, place: Workplace) -> None:
        self._order, self._place = order, place
        self._data: dict[tuple[str, bool | None], Data] = {}
        self._experts: dict[Path, Experts] = {}

    def folder(self, cell: ReproductionCell) -> Path:
        return self._order.folder(cell)

    def identity(self, cell: ReproductionCell) -> Document:
        data = self._data_of(cell).final
        recorded = self._order.recorded(cell)
        return {
            "cell": cell.as_json(),
            "plan": self._order.scale.plan(cell).as_json(),
            "content": {
                "data": data.fingerprint,
                "test data": data.test.fingerprint,
                "whiten": VARIANTS[cell.made.variant].whiten,
                "coreset": None if recorded is None else fingerprint(recorded.read_bytes()),
            },
        }

    def measure(self, cell: ReproductionCell) -> Document:
        began = time.perf_counter()
        found = _Measurement(self, cell).result()
        return found | provenance(self._order.command, self._place.device) | {"seconds": time.perf_counter() - began}

    def train_block(self, cell: ReproductionCell, block: Sequence[int]) -> None:
        """Some of the experts that the cell needs."""
        plan, data = self._order.scale.plan(cell), self._data_of(cell).final
        folder = make_folder(self._order.expert_folder(cell))
        train_block(data, plan.network, block, plan.experts, folder, self._place.device, self._place.backend)

    def _data_of(self, cell: ReproductionCell) -> Data:
        name, whiten = key = cell.made.dataset, VARIANTS[cell.made.variant].whiten
        if key not in self._data:
            whole = load_dataset(name, self._order.data_dir, download=False, whiten=whiten, device=self._place.device)
            held_out = whole.holding_out(HELD_OUT)
            final = replace(held_out, test=self._shortened(whole.test), transform=held_out.transform_source)
            self._data[key] = Data(final, held_out)
        return self._data[key]

    def _shortened(self, split: Split) -> Split:
        most = self._order.scale.test_images
        return split if most is None else Split(split.images[:most], split.labels[:most])

    def _experts_of(self, cell: ReproductionCell) -> Experts:
        folder, plan, data = self._order.expert_folder(cell), self._order.scale.plan(cell), self._data_of(cell).final
        if folder not in self._experts or len(self._experts[folder]) != plan.expert_count:
            make_folder(folder)
            with FileLock(folder / ".lock"):  # another process may be training the same ones
                self._experts[folder] = experts_for(plan, data, folder, self._place)
        return self._experts[folder]


class _Measurement:
    """One cell being measured."""

    def __init__(self, owner: ReproductionJudge, cell: ReproductionCell) -> None:
        self._owner, self._cell = owner, cell
        self._order, self._place = owner._order, owner._place
        self._scale = self._order.scale
        self._plan = self._scale.plan(cell)
        data = owner._data_of(cell)
        self._data, self._held_out = data.final, data.held_out

    def result(self) -> dict[str, Any]:
        judged: Mapping[str, Callable[[], dict[str, Any]]] = {
            "clean": self._clean,
            "shift": self._shift,
            "attack": self._attack,
            "cost": lambda: {},
            "pictures": self._picture,
        }
        constructed = self._construction() if self._cell.role == "coreset" else {}
        return {"construction": dict(constructed), **judged[self._cell.test]()}

    def _clean(self) -> dict[str, Any]:
        """With what calibration on the held-out part would give, where the plan asks for it."""
        held_out = self._held_out.test if self._plan.calibration else None
        reports = [
            evaluate(samples, self._data.test, calibration=held_out, calibration_images=self._plan.calibration)
            for samples in self._samples(self._plan.control_draws)
        ]
        return {"metrics": pooled(reports).as_json()}

    def _shift(self) -> dict[str, Any]:
        (samples,) = self._samples(1)
        found = evaluate_shift(
            samples, self._data.test, self._scale.corruptions, self._scale.severities, self._corrupted
        )
        names = [str(severity) for severity in self._scale.severities]
        by_severity = {
            name: dict(zip(names, (scores.as_json() for scores in each), strict=True)) for name, each in found.items()
        }
        return {"metrics": evaluate(samples, self._data.test).as_json(), "shift": by_severity}

    def _attack(self) -> dict[str, Any]:
        """Each suite at each epsilon is kept for a process that goes on later: together they are the dearest cell."""
        (samples,) = self._samples(1)
        identity, found = self._owner.identity(self._cell), dict[str, dict[str, Any]]()

        def attacked(suite: str, epsilon: float) -> Document:
            answer = attack_chains(
                samples, self._data.test, epsilon, self._scale.attacks[suite], self._scale.attacked_images
            )
            return {"accuracy": answer.chains.as_json(), "ensemble": answer.ensemble}

        for suite in self._scale.attacks:
            for epsilon in self._scale.epsilons:
                pixels = f"{round(255 * epsilon)}/255"
                folder = self._order.folder(self._cell) / slug(suite, pixels)
                kept = once(folder, identity, partial(attacked, suite, epsilon))
                found.setdefault(suite, {})[pixels] = {name: kept[name] for name in ("accuracy", "ensemble")}
        images = min(self._scale.attacked_images, len(self._data.test))
        return {"metrics": evaluate(samples, self._data.test).as_json(), "attack": found, "attacked_images": images}

    def _picture(self) -> dict[str, Any]:
        coreset = self._coreset()
        every = max(1, len(coreset.classes) // PICTURED_CLASSES)
        shown = list(range(0, len(coreset.classes), every))[:PICTURED_CLASSES]
        labels = coreset.hard_labels
        kept = [index for index, label in enumerate(labels.tolist()) if label in shown]
        renumbered = labels[kept].apply_(lambda label: shown.index(label))
        path = self._order.folder(self._cell) / PICTURE
        save_class_rows(path, coreset.to_pixels()[kept], renumbered, [coreset.classes[each] for each in shown])
        return {"picture": PICTURE, "classes": [coreset.classes[each] for each in shown]}

    def _samples(self, control_draws: int) -> Iterator[PosteriorSamples]:
        """Of the coreset, of several draws of its control, or the starts alone."""
        if self._cell.role == "control":
            for draw in range(control_draws):
                yield self._sampled(self._control(draw))
        elif self._cell.role == "starts":
            yield chain_starts(
                self._control(0), self._network, self._plan.protocol, self._plan.sampling, self._starting_experts,
                self._place.device, self._place.backend,
            )  # fmt: skip
        else:
            yield self._sampled(self._coreset())

    def _sampled(self, coreset: Coreset) -> PosteriorSamples:
        return sample_plan(self._plan, coreset, self._data, self._starting_experts, self._place, self._cell.network)

    def _control(self, draw: int) -> Coreset:
        return control_coreset(self._plan.construction, self._data, self._network.spec, draw)

    @cached_property
    def _network(self) -> Network:
        name = self._cell.network or self._plan.network
        return as_network(name, self._data.shape, len(self._data.classes))

    @property
    def _starting_experts(self) -> Experts | None:
        return self._experts if self._plan.protocol == "expert" else None

    @property
    def _experts(self) -> Experts:
        return self._owner._experts_of(self._cell)

    @cached_property
    def _corrupted(self) -> Corrupted:
        return corrupted_images(self._data.test, self._order.data_dir / "corrupted")

    def _coreset(self) -> Coreset:
        recorded = self._order.recorded(self._cell)
        if recorded is not None:
            return whole_coreset(Coreset.load(recorded), self._data, self._order.data_dir)
        self._construction()
        return replace(Coreset.load(self._folder / CORESET), transform=self._data.transform)

    @property
    def _folder(self) -> Path:
        return self._order.out / "cells" / self._cell.made.slug

    def _construction(self) -> Document:
        """What is known of how the coreset was made, which is made now unless it is there."""
        recorded = self._order.recorded(self._cell)
        if recorded is not None:
            return {"recorded": recorded.name}
        plain = self._scale.plan(ReproductionCell(self._cell.made))
        rates = list(self._scale.rates) if VARIANTS[self._cell.made.variant].chooses_rate else []
        return once(
            self._folder / CONSTRUCTION, self._identity(plain) | {"rates": rates}, lambda: self._construct(plain)
        )

    def _identity(self, plan: Plan) -> dict[str, Any]:
        """What decides the outcome of a construction."""
        return {
            "plan": construction_part(plan),
            "data": self._data.fingerprint,
            "whiten": VARIANTS[self._cell.made.variant].whiten,
        }

    def _construct(self, plan: Plan) -> Document:
        experts = self._experts if plan.needs_experts() else None
        began = time.perf_counter()
        files = WorkFiles.within(make_folder(self._folder))
        choice: list[dict[str, Any]] = []
        if VARIANTS[self._cell.made.variant].chooses_rate:
            rate, choice = self._choose_rate(plan, experts)
            plan = _learning_at(plan, rate, plan.construction.iterations)
        made = construct_plan(plan, self._data, experts, files, self._place)
        made.coreset.save(self._folder / CORESET, compact=True)
        write_log(self._folder / "log.jsonl", made.history)
        made.discard_checkpoint()
        return {
            "iterations": len(made.history),
            "seconds_per_iteration": made.seconds_per_iteration,
            "peak_memory": made.peak_memory,
            "learning_rate": plan.construction.learning_rate,
            "choice": choice,
            "construct_seconds": time.perf_counter() - began,
            **provenance(self._order.command, self._place.device),
        }

    def _choose_rate(self, plan: Plan, experts: Experts | None) -> tuple[float, list[dict[str, Any]]]:
        """The rate of the most accurate short construction on held-out data, and what was found for each."""
        found = [self._tried(plan, rate, experts) for rate in self._scale.rates]
        best = max(found, key=lambda each: each["accuracy"])
        return best["learning_rate"], found

    def _tried(self, plan: Plan, rate: float, experts: Experts | None) -> dict[str, Any]:
        """What a short construction gives on held-out data, kept for a process that goes on later."""
        short = _learning_at(plan, rate, min(self._scale.rate_iterations, plan.construction.iterations))
        folder = self._folder / f"rate{rate:g}"

        def trial() -> Document:
            with _temporary(folder / "work") as files:
                try:
                    made = construct_plan(short, self._data, experts, files, self._place)
                except DivergenceError as error:
                    return {"learning_rate": rate, "accuracy": 0.0, "failure": str(error)}
                report = judge(short, made.coreset, self._held_out, experts, self._place)
                return {"learning_rate": rate, "accuracy": report.accuracy.mean}

        kept = once(folder, self._identity(short) | {"plan": short.as_json()}, trial)
        return {name: kept[name] for name in ("learning_rate", "accuracy", "failure") if name in kept}


def construction_part(plan: Plan) -> Document:
    """What of a plan decides how the coreset is made."""
    return {name: value for name, value in plan.as_json().items() if name not in JUDGING}


def _learning_at(plan: Plan, rate: float, iterations: int) -> Plan:
    return replace(plan, construction=replace(plan.construction, learning_rate=rate, iterations=iterations))


@contextmanager
def _temporary(folder: Path) -> Iterator[WorkFiles]:
    """Work files that are gone afterwards."""
    try:
        yield WorkFiles.within(make_folder(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
