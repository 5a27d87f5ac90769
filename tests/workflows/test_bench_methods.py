"""The efficiency table: every method can be measured, and the command as typed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Invoke

from pseudocoresets.evaluation.paper import paper_cost
from pseudocoresets.methods import METHODS
from pseudocoresets.workflows import bench_methods as bench
from pseudocoresets.workflows.bench import CPU
from pseudocoresets.workflows.bench_plot import bench_figure
from pseudocoresets.workflows.published_loops import PUBLISHED_LOOPS

TINY = replace(CPU, train_images=120, test_images=10, network="convnet:width=4")
EVERY = bench.method_names([bench.ALL])


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few iterations as there can be."""
    monkeypatch.setattr(bench, "GROUP_SECONDS", 0.0)
    monkeypatch.setattr(bench, "MEASURED_SECONDS", 0.0)


def quick_options(name: str) -> dict[str, Any]:
    """Whatever makes an iteration of a method short."""
    short = {"steps": 2, "samples": 3, "batch_size": 8, "epochs": 1, "matches": 2, "horizon": 6, "chains": 1}
    short |= {"burn_in": 1, "leapfrog_steps": 1, "langevin_steps": 1, "watched_images": 4}
    known = METHODS[name]().options()  # type: ignore[union-attr]
    allowed = {key: value for key, value in short.items() if key in known}
    if name in ("bptt", "ld"):
        allowed["burn_in"] = 0
    if name == "kip":
        allowed["kernel"] = "empirical"
    return allowed


@pytest.mark.parametrize("name", EVERY)
def test_every_method_can_be_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with little work; in both formulations where there are two."""
    method = bench.build_gradient_method(name, {**quick_options(name), **bench.PREPARED.get(name, {})})
    monkeypatch.setattr(bench, "_method", lambda *_: method)
    for published in (False, True) if name in PUBLISHED_LOOPS else (False,):
        cost = bench.measured(bench.MethodCell(name, 1, published, "cpu", "auto", TINY))
        assert cost.seconds > 0
        assert cost.peak_memory > 0


def test_the_command_writes_the_table_and_the_plot(bpc: Invoke, tmp_path: Path) -> None:
    """One method with a published loop, each side in a process of its own; the other figures are the paper's."""
    result = bpc("bench", "--methods", "dm", "--ipc", "1", "--device", "cpu", "--out", "cost.json", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == json.loads((tmp_path / "cost.json").read_text())
    (row,) = document["rows"]
    assert (row["method"], row["ipc"], row["failure"]) == ("dm", 1, None)
    assert row["times_faster"] == pytest.approx(row["published"]["seconds"] / row["ours"]["seconds"])
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_alone_leaves_the_published_loops_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(_: Any, __: Any, cell: bench.MethodCell) -> bench.Cost:
        return bench.Cost(2.0 if cell.published else 1.0, 1)

    monkeypatch.setattr(bench._CleanProcesses, "call", cost)
    (beside,) = bench.bench_methods(["dm"], [1], "cpu")
    (alone,) = bench.bench_methods(["dm"], [1], "cpu", alone=True)
    assert (beside.times_faster, alone.times_faster, alone.ours) == (2.0, None, bench.Cost(1.0, 1))


def test_every_call_has_a_process_of_its_own_though_others_wait() -> None:
    cells = [bench.MethodCell("dm", ipc, False, "cpu", "auto", TINY) for ipc in (1, 2, 3)]
    with bench._CleanProcesses(ahead=1) as processes:
        numbers = [processes.call(process_number, cell) for cell in cells]
    assert len({os.getpid(), *numbers}) == 4


def process_number(cell: bench.MethodCell) -> Any:
    return os.getpid()


def test_the_plot_says_what_was_learned_and_has_numbers_on_every_axis() -> None:
    """Memory of a CPU's rows lies within less than a decade, where powers of ten alone leave an axis bare."""
    costs = {1: bench.Cost(0.2, 456_000_000), 10: bench.Cost(0.4, 462_000_000), 50: bench.Cost(1.7, 539_000_000)}
    rows = [bench.MethodCost("ld", ipc, cost, labels_learned=True) for ipc, cost in costs.items()]
    figure = bench_figure(rows, "CPU")
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ld (labels learned)"]
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = axis.get_view_interval()
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        assert any(tick.label1.get_text() and low <= tick.get_loc() <= high for tick in ticks)


def test_a_method_that_fails_is_a_row(bpc: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any) -> bench.Cost:
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(bench._CleanProcesses, "call", out_of_memory)
    table = bpc("bench", "--methods", "ld", "--ipc", "1", "--device", "cpu").stdout
    assert "ld (labels learned), ipc 1" in table
    result = bpc("bench", "--methods", "cd,gm", "--ipc", "1,10", "--device", "cpu", "--json")
    assert result.exit_code == 3
    rows = json.loads(result.stdout)["rows"]
    assert [(row["method"], row["ipc"]) for row in rows] == [("cd", 1), ("cd", 10), ("gm", 1), ("gm", 10)]
    assert all("no more" in row["failure"] for row in rows)
    assert (rows[0]["paper_seconds"], rows[0]["paper_memory_gb"]) == (0.71, 37.1)
    assert (rows[3]["paper_seconds"], rows[3]["paper_memory_gb"]) == (11.4, 42.78)


def test_the_papers_costs_are_in_its_words() -> None:
    assert paper_cost("cifar10", 10, "fkl-hmc") == (13.82, 52.67)
    assert paper_cost("cifar10", 1, "dm") == (None, None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--methods", "moments"), "finds rows for a model"),
        (("--methods", "herding"), "selects real images"),
        (("--methods", "cdd1"), "Did you mean"),
        (("--methods", "cd", "--ipc", "1,x"), "whole numbers separated by commas"),
        (("--methods", "cd", "--ipc", "0"), "from 1 to"),
        (("--methods", ","), "names nothing"),
        (("--ipc", "1"), "--ipc goes with --methods"),
    ],
)
def test_bad_arguments_are_named(bpc: Invoke, arguments: tuple[str, ...], sentence: str) -> None:
    result = bpc("bench", "--device", "cpu", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
