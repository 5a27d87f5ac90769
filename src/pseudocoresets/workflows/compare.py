"""Several methods at one cell (data set, images per class, network), on shared experts and under one evaluation."""

from __future__ import annotations

import json
import math
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pseudocoresets._io.files import make_folder, read_json, require_writable_folder, write_json, write_text
from pseudocoresets.construction.loop import network_for
from pseudocoresets.core.devices import threads_for
from pseudocoresets.core.errors import PseudocoresetsError
from pseudocoresets.data import load_dataset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.evaluation import METRICS, Summary
from pseudocoresets.evaluation.paper import paper_figure
from pseudocoresets.inference.settings import SamplingSettings
from pseudocoresets.methods.selection import require_class_size
from pseudocoresets.sources.experts import Experts
from pseudocoresets.workflows.construct import WorkFiles, construct_plan, write_log
from pseudocoresets.workflows.evaluate import judge, judge_control
from pseudocoresets.workflows.place import Workplace, workplace
from pseudocoresets.workflows.plan import Plan
from pseudocoresets.workflows.run import experts_for

CONTROL = "random real images (control)"
SCORES = tuple(metric.title for metric in METRICS.values())
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
        paper = [_text(self.paper_accuracy, 100, 1), _text(self.paper_nll, 1, 2)]
        return [
            self.method,
            *scores,
            f"{100 * self.gain['accuracy']:+.1f}",
            ", ".join(filter(None, paper)),
            _text(self.seconds_per_iteration, 1, 3),
            _text(self.seconds, 1, 0),
            _text(self.peak_memory, 2**-20, 0),
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
            "dataset": self.plan.dataset,
            "ipc": self.plan.construction.ipc,
            "network": self.plan.network,
            "protocol": self.plan.protocol,
            "seeds": list(self.seeds),
            "sampling": asdict(self.plan.sampling),
            "construction": {
                name: getattr(self.plan.construction, name) for name in ("temperature", "prior_scale", "weights")
            },
            "rows": [row.as_json() for row in self.rows],
        }

    def as_markdown(self) -> str:
        lines = [f"**{self.title}**", "", _markdown_row(COLUMNS), _markdown_row(["---"] * len(COLUMNS))]
        lines += [_markdown_row(row.cells()) for row in self.rows]
        return "\n".join([*lines, "", *[f"- {note}" for note in self.notes]]) + "\n"

    def save(self, folder: Path) -> None:
        """comparison.json and comparison.md."""
        write_json(folder / "comparison.json", self.as_json())
        write_text(folder / "comparison.md", self.as_markdown())


def run_comparison(
    plans: Mapping[str, Plan],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    data_dir: str | Path = "data",
    experts_dir: str | Path | None = None,
    place: Workplace | None = None,
) -> Comparison:
    """Every plan with every seed, its control first; cells that ``folder`` already holds are not computed again.

    The control is one for all methods whose posterior is sampled in the same way. A method that fails is a row that
    says why; the others go on. The table is saved after every row.
    """
    folder = Path(folder)
    require_writable_folder(folder)
    place = place or workplace()
    plan = next(iter(plans.values()))
    data = load_dataset(plan.dataset, data_dir)
    require_class_size(data.train, plan.construction.ipc)
    rows: list[Row] = []
    controls: dict[SamplingSettings, Mapping[int, Cell]] = {}
    with threads_for(data.shape):
        experts = None
        if any(own.needs_experts() for own in plans.values()):
            experts = experts_for(plan, data, experts_dir or folder / "experts", place)
        runner = _CellRunner(folder, data, experts, place)
        for name, own in plans.items():
            if own.sampling not in controls:
                kind = f"control-{name}" if controls else "control"
                control = {seed: runner.control(own.with_seed(seed), seed, kind) for seed in seeds}
                controls[own.sampling] = control
                rows.append(_row(f"{CONTROL} as {name}" if len(controls) > 1 else CONTROL, own, control, control))
            rows.append(_method_row(name, own, seeds, runner, controls[own.sampling]))
            Comparison(plan, seeds, rows).save(folder)
    return Comparison(plan, seeds, rows)


Cell = Mapping[str, Any]
"""What metrics.json holds of one method at one seed."""


class _Attempt(NamedTuple):
    cells: dict[int, Cell]
    failures: list[str]


def _method_row(name: str, plan: Plan, seeds: Sequence[int], runner: _CellRunner, control: Mapping[int, Cell]) -> Row:
    attempt = _Attempt({}, [])
    for seed in seeds:
        try:
            attempt.cells[seed] = runner.cell(plan.with_seed(seed), seed)
        except Exception as error:
            attempt.failures.append(f"seed {seed} failed: {_reason(error)}")
            runner.record_failure(plan, seed)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    failure = " ".join(attempt.failures) or None
    if not attempt.cells:
        return Row(name, failure=failure)
    return replace(_row(name, plan, attempt.cells, control), failure=failure)


def _reason(error: Exception) -> str:
    """The library's own sentence, or the name and first line of what was not foreseen."""
    if isinstance(error, PseudocoresetsError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}"


class _CellRunner:
    """Computes one method at one seed, or reads it from its folder."""

    def __init__(
        self,
        folder: Path,
        data: Dataset,
        experts: Experts | None,
        place: Workplace,
    ) -> None:
        self._folder = folder
        self._data = data
        self._experts = experts
        self._place = place

    def cell(self, plan: Plan, seed: int) -> Cell:
        folder = make_folder(self._cell_folder(plan, seed))
        return self._once(folder, plan, lambda: self._construct_and_judge(folder, plan))

    def control(self, plan: Plan, seed: int, kind: str) -> Cell:
        folder = make_folder(self._folder / kind / f"seed{seed}")
        plan = replace(plan, method="random", method_options={}, before=())
        return self._once(folder, plan, lambda: self._judge_control(plan))

    def record_failure(self, plan: Plan, seed: int) -> None:
        """Within an except block: keep the traceback beside where the result would be."""
        write_text(self._cell_folder(plan, seed) / "failure.txt", traceback.format_exc())

    def _cell_folder(self, plan: Plan, seed: int) -> Path:
        return self._folder / plan.method / f"seed{seed}"

    def _once(self, folder: Path, plan: Plan, compute: Callable[[], dict[str, Any]]) -> Cell:
        path = folder / "metrics.json"
        if path.exists():
            found: dict[str, Any] = read_json(path)
            if found.get("plan") == _as_stored(plan):
                return found
        document: dict[str, Any] = compute() | {"plan": _as_stored(plan)}
        write_json(path, document)
        (folder / "failure.txt").unlink(missing_ok=True)
        return document

    def _construct_and_judge(self, folder: Path, plan: Plan) -> dict[str, Any]:
        made = construct_plan(plan, self._data, self._experts, WorkFiles.within(folder), self._place)
        made.coreset.save(folder / "coreset.safetensors")
        made.initial.save(folder / "initial.safetensors")
        write_log(folder / "log.jsonl", made.history)
        report = judge(plan, made.coreset, self._data, self._experts, self._place)
        made.discard_checkpoint()
        return report.as_json() | {
            "seconds_per_iteration": made.seconds_per_iteration,
            "seconds": made.seconds_per_iteration * len(made.history),
            "peak_memory": made.peak_memory,
        }

    def _judge_control(self, plan: Plan) -> dict[str, Any]:
        spec = network_for(self._experts, plan.network, self._data).spec
        return judge_control(plan, spec, self._data, self._experts, self._place).as_json()


def _as_stored(plan: Plan) -> Any:
    """The plan as JSON gives it back."""
    return json.loads(json.dumps(plan.as_json()))


def _row(name: str, plan: Plan, cells: Mapping[int, Cell], control: Mapping[int, Cell]) -> Row:
    """The means over the seeds in ``cells``, the control's being those of the same seeds."""
    metrics = {metric: Summary(tuple(_score(cell, metric) for cell in cells.values())) for metric in METRICS}
    reference = {metric: statistics.fmean(_score(control[seed], metric) for seed in cells) for metric in METRICS}
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
    )


def _score(cell: Cell, metric: str) -> float:
    """What is not finite is null in the file."""
    found = cell["ensemble"][metric]
    return math.nan if found is None else found


def _mean(cells: Mapping[int, Cell], name: str) -> float | None:
    """Over the cells that have it; the control has no cost, and a selection of real images takes no iterations."""
    found = [cell[name] for cell in cells.values() if cell.get(name)]
    return statistics.fmean(found) if found else None


def _text(value: float | None, scale: float, digits: int) -> str:
    return "" if value is None else f"{scale * value:.{digits}f}"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
