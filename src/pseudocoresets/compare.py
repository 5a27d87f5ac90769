"""Several methods at one cell (data set, images per class, network), on shared experts and under one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pseudocoresets.data import load_dataset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.devices import resolve_device
from pseudocoresets.errors import PseudocoresetsError
from pseudocoresets.evaluation import METRICS, Summary
from pseudocoresets.evaluation.paper import paper_figure
from pseudocoresets.experts import Experts
from pseudocoresets.files import make_folder, read_json, require_writable_folder, write_json
from pseudocoresets.pipeline import Plan, experts_for, judge, judge_control, make_coreset, write_log
from pseudocoresets.progress import Progress, Silent
from pseudocoresets.selection import require_class_size


@dataclass(frozen=True)
class Row:
    """One method over all seeds, or why it failed."""

    method: str
    metrics: Mapping[str, Summary] | None
    """Each metric of the average over chains and samples, over seeds."""
    gain: Mapping[str, float] | None
    paper_accuracy: float | None
    paper_nll: float | None
    seconds_per_iteration: float | None
    seconds: float | None
    peak_memory: int | None
    failure: str | None = None

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        if self.metrics is not None:
            document["metrics"] = {name: summary.as_json() for name, summary in self.metrics.items()}
        return document


def run_comparison(
    plans: Mapping[str, Plan],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    data_dir: str | Path = "data",
    experts_dir: str | Path | None = None,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
) -> list[Row]:
    """Every plan with every seed, the control first; cells that ``folder`` already holds are not computed again.

    A method that fails is a row that says why; the others go on.
    """
    folder = Path(folder)
    require_writable_folder(folder)
    device = resolve_device(device)
    progress = progress or Silent()
    plan = next(iter(plans.values()))
    data = load_dataset(plan.dataset, data_dir)
    require_class_size(data.train, plan.construction.ipc)
    experts = experts_for(plan, data, experts_dir or folder / "experts", device, progress)
    runner = _CellRunner(folder, data, experts, device, progress)
    control = [runner.control(_seeded(plan, seed), seed) for seed in seeds]
    rows = [_row("random real images (control)", plan, control, control)]
    for name, own in plans.items():
        try:
            cells = [runner.cell(_seeded(own, seed), seed) for seed in seeds]
        except PseudocoresetsError as error:
            rows.append(Row(name, None, None, None, None, None, None, None, failure=str(error)))
        else:
            rows.append(_row(name, own, cells, control))
    write_json(folder / "comparison.json", [row.as_json() for row in rows])
    return rows


class _CellRunner:
    """Computes one method at one seed, or reads it from its folder."""

    def __init__(self, folder: Path, data: Dataset, experts: Experts, device: torch.device, progress: Progress) -> None:
        self._folder = folder
        self._data = data
        self._experts = experts
        self._device = device
        self._progress = progress

    def cell(self, plan: Plan, seed: int) -> dict[str, Any]:
        folder = make_folder(self._folder / plan.method / f"seed{seed}")
        return self._once(folder, plan, lambda: self._construct_and_judge(folder, plan))

    def control(self, plan: Plan, seed: int) -> dict[str, Any]:
        folder = make_folder(self._folder / "control" / f"seed{seed}")
        plan = replace(plan, method="random", method_options={})
        return self._once(folder, plan, lambda: self._judge_control(plan))

    def _once(self, folder: Path, plan: Plan, compute: Any) -> dict[str, Any]:
        path = folder / "metrics.json"
        if path.exists():
            found: dict[str, Any] = read_json(path)
            if found.get("plan") == _as_stored(plan):
                return found
        document: dict[str, Any] = compute() | {"plan": _as_stored(plan)}
        write_json(path, document)
        return document

    def _construct_and_judge(self, folder: Path, plan: Plan) -> dict[str, Any]:
        made = make_coreset(plan, self._data, self._experts, folder, self._device, self._progress)
        made.coreset.save(folder / "coreset.safetensors")
        made.initial.save(folder / "initial.safetensors")
        write_log(folder / "log.jsonl", made.history)
        report = judge(
            made.coreset, self._data, plan.protocol, plan.sampling, self._experts, self._device, self._progress
        )
        return report.as_json() | {
            "seconds_per_iteration": made.seconds_per_iteration,
            "seconds": made.seconds_per_iteration * len(made.history),
            "peak_memory": made.peak_memory,
        }

    def _judge_control(self, plan: Plan) -> dict[str, Any]:
        spec = self._experts.network.spec
        return judge_control(plan, self._data, spec, self._experts, self._device, self._progress).as_json()


def _seeded(plan: Plan, seed: int) -> Plan:
    return replace(plan, construction=replace(plan.construction, seed=seed), sampling=replace(plan.sampling, seed=seed))


def _as_stored(plan: Plan) -> Any:
    """The plan as JSON gives it back."""
    import json

    return json.loads(json.dumps(plan.as_json()))


def _row(name: str, plan: Plan, cells: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]]) -> Row:
    metrics = {metric: Summary(tuple(cell["ensemble"][metric] for cell in cells)) for metric in METRICS}
    reference = {metric: Summary(tuple(cell["ensemble"][metric] for cell in control)) for metric in METRICS}
    first = cells[0]
    return Row(
        method=name,
        metrics=metrics,
        gain={metric: metrics[metric].mean - reference[metric].mean for metric in METRICS},
        paper_accuracy=paper_figure(plan.dataset, plan.construction.ipc, name, "accuracy"),
        paper_nll=paper_figure(plan.dataset, plan.construction.ipc, name, "nll"),
        seconds_per_iteration=first.get("seconds_per_iteration"),
        seconds=first.get("seconds"),
        peak_memory=first.get("peak_memory"),
    )
