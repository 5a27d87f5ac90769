"""Several methods at one cell (data set, images per class, network), on shared experts and under one evaluation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import only_writer, read_json, require_writable_folder, write_json, write_text
from pseudocoresets._io.schema import ANY_OBJECT
from pseudocoresets.construction.loop import network_for
from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.mapping import Mapper, in_this_process
from pseudocoresets.core.progress import Job, Stage
from pseudocoresets.data import load_dataset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.evaluation import METRICS, Summary
from pseudocoresets.evaluation.paper import paper_figure
from pseudocoresets.evaluation.report import method_title
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.methods.selection import require_class_size
from pseudocoresets.models.networks import Network
from pseudocoresets.sources.experts import Experts, train_block
from pseudocoresets.workflows.cells import Cell, Document, Outcome, as_number, as_text, markdown_table, run_cells
from pseudocoresets.workflows.construct import WorkFiles, construct_plan, write_log
from pseudocoresets.workflows.estimate import require_feasible
from pseudocoresets.workflows.evaluate import judge, judge_control
from pseudocoresets.workflows.outputs import require_same_request
from pseudocoresets.workflows.place import Workplace, workplace
from pseudocoresets.workflows.plan import Plan
from pseudocoresets.workflows.run import experts_for, spread_experts, stages_of

CONTROL = "random real images (control)"
SCORES = tuple(metric.title for metric in METRICS.values())
CONTROL_CELL = "control"
EXPERTS = "experts"
"""The stage in which experts are trained."""
COMPARISON = "comparison.json"
COLUMNS = ("", *SCORES, "gain %", "paper %, NLL", "s/iteration", "total s", "peak MiB")


@dataclass(frozen=True)
class Row:
    """One method over its seeds, and what failed."""

    method: str
    metrics: Mapping[str, Summary] | None = None
    """Each metric of the average over chains and samples, over seeds; None if no seed succeeded."""
    gain: Mapping[str, float] | None = None
    """Each metric's mean less that of the control at the same seeds."""
    paper_accuracy: float | None = None
    paper_nll: float | None = None
    seconds_per_iteration: float | None = None
    seconds: float | None = None
    """Of one construction, without its evaluation."""
    peak_memory: int | None = None
    labels_learned: bool = False
    formation: int = 1
    failure: str | None = None

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        if self.metrics is not None:
            document["metrics"] = {name: summary.as_json() for name, summary in self.metrics.items()}
        return document

    def cells(self) -> list[str]:
        """The row as text, under ``COLUMNS``."""
        if self.metrics is None or self.gain is None:
            return [self.method, "failed", *[""] * (len(COLUMNS) - 2)]
        scores = [metric.spread(self.metrics[name].mean, self.metrics[name].std) for name, metric in METRICS.items()]
        paper = [as_text(self.paper_accuracy, ".1f", factor=100), as_text(self.paper_nll, ".2f")]
        return [
            method_title(self.method, self.labels_learned, self.formation),
            *scores,
            f"{100 * self.gain['accuracy']:+.1f}",
            ", ".join(filter(None, paper)),
            as_text(self.seconds_per_iteration, ".3f"),
            as_text(self.seconds, ".0f"),
            as_text(self.peak_memory, ".0f", factor=2**-20),
        ]


@dataclass(frozen=True)
class Comparison:
    """The table, and the settings that all its rows share."""

    plan: Plan
    seeds: Sequence[int]
    rows: Sequence[Row]

    @property
    def title(self) -> str:
        plan = self.plan
        return (
            f"{plan.dataset}, {plan.construction.ipc} image(s) per class, {plan.network}, {plan.protocol} protocol, "
            f"{len(self.seeds)} seed(s)"
        )

    @property
    def notes(self) -> list[str]:
        """What the numbers are, the posterior they belong to, and what failed."""
        sampling, construction = self.plan.sampling, self.plan.construction
        notes = [
            "Averages over chains and samples; mean ± deviation over seeds; gain over the control.",
            f"Posterior: {sampling.sampler} at temperature {sampling.temperature:g}, prior scale "
            f"{sampling.prior_scale:g}, {construction.weights} weights; construction: temperature "
            f"{construction.temperature:g}, prior scale {construction.prior_scale:g}.",
        ]
        return notes + [f"{row.method}: {row.failure}" for row in self.rows if row.failure is not None]

    def as_json(self) -> dict[str, Any]:
        return {
            **_cell(self.plan),
            "seeds": list(self.seeds),
            "sampling": asdict(self.plan.sampling),
            "construction": {
                name: getattr(self.plan.construction, name) for name in ("temperature", "prior_scale", "weights")
            },
            "rows": [row.as_json() for row in self.rows],
        }

    def as_markdown(self) -> str:
        table = markdown_table(COLUMNS, [row.cells() for row in self.rows])
        return "\n".join([f"**{self.title}**", "", *table, "", *[f"- {note}" for note in self.notes]]) + "\n"

    def save(self, folder: Path) -> None:
        """comparison.json and comparison.md."""
        write_json(folder / COMPARISON, self.as_json())
        write_text(folder / "comparison.md", self.as_markdown())


def run_comparison(
    plans: Mapping[str, Plan],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    data_dir: str | Path = "data",
    experts_dir: str | Path | None = None,
    place: Workplace | None = None,
    force: bool = False,
    mapper: Mapper = in_this_process,
) -> Comparison:
    """Every plan with every seed, its control first; experts and cells wherever ``mapper`` has them computed.

    Cells that ``folder`` already holds are not computed again, unless their plan or the content of what it names (data,
    network, experts, methods) has changed. The control is one for all methods whose posterior is sampled in the same
    way. A method that fails is a row that says why; the others go on. The table is saved after every row. A table of
    another cell is replaced only by ``force``.
    """
    folder = Path(folder)
    require_writable_folder(folder)
    place = place or workplace()
    plan = next(iter(plans.values()))
    if (folder / COMPARISON).is_file() and not force:
        require_same_request(folder, read_json(folder / COMPARISON, ANY_OBJECT), _cell(plan))
    data = load_dataset(plan.dataset, data_dir)
    require_class_size(data.train, plan.construction.ipc)
    experts_dir = Path(experts_dir or folder / "experts")
    for own in plans.values():
        require_feasible(own, data, experts_dir, place.device)
    controlled = _with_controls(plans)
    job = Job(place.progress, "the whole comparison", _stages(controlled, seeds, data))
    if mapper is in_this_process:
        place = replace(place, progress=job)
    images = _ImageJudge(controlled, folder, Path(data_dir), experts_dir, place, data)
    with only_writer(folder), threads_for(data.shape), job:
        if (trained := images.trained) is not None:
            spread_experts(images.train_block, trained.dataset, trained.expert_count, mapper, place.progress)
        images.prepare()
        rows = []
        for row in _rows(images, plans, seeds, mapper):
            rows.append(row)
            Comparison(plan, seeds, rows).save(folder)
    return Comparison(plan, seeds, rows)


def _with_controls(plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """Every plan by its name, after the control of the first with the same sampling."""
    found: dict[str, Plan] = {}
    controls: set[SamplingSettings] = set()
    for name, plan in plans.items():
        if plan.sampling not in controls:
            kind = f"{CONTROL_CELL}-{name}" if controls else CONTROL_CELL
            found[kind] = replace(plan, method="random", method_options={}, before=())
            controls.add(plan.sampling)
        found[name] = plan
    return found


def _stages(plans: Mapping[str, Plan], seeds: Sequence[int], data: Dataset) -> list[Stage]:
    """What a comparison will do in one process: experts, and then every cell."""
    stages: list[Stage] = []
    for name, plan in plans.items():
        parts = {part.name: part for part in stages_of(plan, data)}
        if EXPERTS in parts and not (stages and stages[0].name == EXPERTS):
            stages.insert(0, parts[EXPERTS])
        own = [parts["control"]] if name.startswith(CONTROL_CELL) else [parts["construct"], parts["posterior"]]
        work, tasks = sum(part.work for part in own), sum(part.tasks for part in own)
        stages += [Stage(_title(Cell(name, plan.construction.ipc, seed)), work, tasks) for seed in seeds]
    return stages


def _title(cell: Cell) -> str:
    return f"{cell.method}, seed {cell.seed}"


def _rows(images: _ImageJudge, plans: Mapping[str, Plan], seeds: Sequence[int], mapper: Mapper) -> Iterator[Row]:
    """Each as soon as all its seeds are there."""
    cells = [Cell(name, plan.construction.ipc, seed) for name, plan in images.plans.items() for seed in seeds]
    outcomes = run_cells(cells, images, None if mapper is in_this_process else images.place.progress, mapper=mapper)
    controls: dict[SamplingSettings, Mapping[int, Document]] = {}
    for name, own in images.plans.items():
        found = list(islice(outcomes, len(seeds)))
        if name in plans:
            yield _method_row(name, own, found, controls[own.sampling])
            continue
        failed = next((each.failure for each in found if each.failure is not None), None)
        if failed is not None:
            raise DivergenceError(f"The control failed, so that no gain can be told: {failed}")
        control = {each.cell.seed: each.document for each in found if each.document is not None}
        title = f"{CONTROL} as {name.removeprefix(f'{CONTROL_CELL}-')}" if controls else CONTROL
        controls[own.sampling] = control
        yield _row(title, own, control, control)


def _cell(plan: Plan) -> dict[str, Any]:
    """What all rows of a table are about."""
    return {
        "dataset": plan.dataset,
        "ipc": plan.construction.ipc,
        "network": plan.network,
        "protocol": plan.protocol,
    }


@dataclass(frozen=True)
class _ImageJudge:
    """Coresets of images: each plan's posterior on the test data, and that of random real images.

    Another process reads data and experts for itself.
    """

    plans: Mapping[str, Plan]
    """By name, controls among them."""
    root: Path
    data_dir: Path
    experts_dir: Path
    place: Workplace
    known_data: Dataset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        folders = (folder.absolute() for folder in (self.root, self.data_dir, self.experts_dir))
        return _ImageJudge, (self.plans, *folders, self.place)

    @cached_property
    def data(self) -> Dataset:
        return self.known_data or load_dataset(next(iter(self.plans.values())).dataset, self.data_dir)

    @property
    def trained(self) -> Plan | None:
        """The plan whose experts all that need some share: the most epochs of the most experts."""
        drawing = (plan for plan in self.plans.values() if plan.needs_experts())
        return max(drawing, key=lambda plan: (plan.experts.epochs, plan.expert_count), default=None)

    @cached_property
    def experts(self) -> Experts | None:
        return None if self.trained is None else experts_for(self.trained, self.data, self.experts_dir, self.place)

    def prepare(self) -> None:
        """Train or refuse experts now, not in the first cell."""
        if self.trained is not None:
            with self._stage(EXPERTS):
                _ = self.experts

    def _stage(self, name: str) -> AbstractContextManager[None]:
        """Of the one bar for the whole comparison, where there is one."""
        return self.place.progress.stage(name) if isinstance(self.place.progress, Job) else nullcontext()

    def train_block(self, block: Sequence[int]) -> None:
        """Some of the experts."""
        assert self.trained is not None
        train_block(
            self.data,
            self.trained.network,
            block,
            self.trained.experts,
            self.experts_dir,
            self.place.device,
            self.place.backend,
        )

    def folder(self, cell: Cell) -> Path:
        return self.root / cell.method / f"seed{cell.seed}"

    def identity(self, cell: Cell) -> Document:
        return self._identity(self._plan(cell))

    def measure(self, cell: Cell) -> Document:
        plan, folder = self._plan(cell), self.folder(cell)
        with threads_for(self.data.shape), self._stage(_title(cell)):
            if cell.method.startswith(CONTROL_CELL):
                return judge_control(plan, self._network.spec, self.data, self.experts, self.place).as_json()
            made = construct_plan(plan, self.data, self.experts, WorkFiles.within(folder), self.place)
            made.coreset.save(folder / "coreset.safetensors", large_whitening=False)
            made.initial.save(folder / "initial.safetensors", large_whitening=False)
            write_log(folder / "log.jsonl", made.history)
            report = judge(plan, made.coreset, self.data, self.experts, self.place)
        made.discard_checkpoint()
        return report.as_json() | {
            "seconds_per_iteration": made.seconds_per_iteration,
            "seconds": made.seconds_per_iteration * len(made.history),
            "peak_memory": made.peak_memory,
            "labels_learned": made.coreset.labels_learned,
            "formation": made.coreset.formation,
        }

    @cached_property
    def _network(self) -> Network:
        return network_for(self.experts, next(iter(self.plans.values())).network, self.data)

    def _plan(self, cell: Cell) -> Plan:
        return self.plans[cell.method].with_seed(cell.seed)

    def _identity(self, plan: Plan) -> Document:
        """The plan, and the content of what it names: other images in the same folder are other data."""
        experts = self.experts if plan.needs_experts() else None
        return {
            "plan": plan.as_json(),
            "content": {
                "data": self.data.fingerprint,
                "test data": self.data.test.fingerprint,
                "network": self._network.fingerprint,
                "experts": None if experts is None else experts.fingerprint,
                "methods": fingerprint([stage.implementation() for stage in plan.stages]),
            },
        }


def _method_row(name: str, plan: Plan, outcomes: Sequence[Outcome[Cell]], control: Mapping[int, Document]) -> Row:
    failures = [f"seed {each.cell.seed} failed: {each.failure}" for each in outcomes if each.failure is not None]
    found = {each.cell.seed: each.document for each in outcomes if each.document is not None}
    failure = " ".join(failures) or None
    return replace(_row(name, plan, found, control), failure=failure) if found else Row(name, failure=failure)


def _row(name: str, plan: Plan, cells: Mapping[int, Document], control: Mapping[int, Document]) -> Row:
    """The means over the seeds in ``cells``, the control's being those of the same seeds."""
    metrics = {
        metric: Summary(tuple(as_number(cell["ensemble"][metric]) for cell in cells.values())) for metric in METRICS
    }
    reference = {
        metric: statistics.fmean(as_number(control[seed]["ensemble"][metric]) for seed in cells) for metric in METRICS
    }
    memory = _mean(cells, "peak_memory")
    return Row(
        method=name,
        metrics=metrics,
        gain={metric: metrics[metric].mean - reference[metric] for metric in METRICS},
        paper_accuracy=paper_figure(plan.dataset, plan.construction.ipc, name, "accuracy"),
        paper_nll=paper_figure(plan.dataset, plan.construction.ipc, name, "nll"),
        seconds_per_iteration=_mean(cells, "seconds_per_iteration"),
        seconds=_mean(cells, "seconds"),
        peak_memory=None if memory is None else round(memory),
        labels_learned=any(cell.get("labels_learned") for cell in cells.values()),
        formation=max(cell.get("formation", 1) for cell in cells.values()),
    )


def _mean(cells: Mapping[int, Document], name: str) -> float | None:
    """Over the cells that have it; the control has no cost, and a selection of real images takes no iterations."""
    found = [cell[name] for cell in cells.values() if cell.get(name)]
    return statistics.fmean(found) if found else None
