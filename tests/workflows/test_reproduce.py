"""The paper's tables by one command: the catalogue is whole, cells resume, numbers stand beside the paper's."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browser import find_chromium, visit
from small import Invoke
from typer.testing import CliRunner

from pseudocoresets._cli.app import build_app
from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.data.corruptions import CORRUPTIONS
from pseudocoresets.evaluation.attacks import Attack, attack_chains
from pseudocoresets.evaluation.paper import paper_figures
from pseudocoresets.sources.experts import Experts
from pseudocoresets.workflows.cells import RESULT, once
from pseudocoresets.workflows.place import workplace
from pseudocoresets.workflows.reproduce.catalogue import NETWORKS, TABLES, Place
from pseudocoresets.workflows.reproduce.cells import CONVNET, VARIANTS, Made, ReproductionCell
from pseudocoresets.workflows.reproduce.judge import Order, ReproductionJudge
from pseudocoresets.workflows.reproduce.scale import SMOKE, SMOKE_NETWORKS, Scale
from pseudocoresets.workflows.reproduce.schedule import ATTACK_SECONDS, SHIFT_SECONDS, Clock, Wanted, judge_coreset
from pseudocoresets.workflows.reproduce.tables import (
    UNITS,
    _values,
    corruption_of,
    failures,
    lines_of,
    markdown,
    read_records,
)
from pseudocoresets.workflows.run import experts_for

ORDER = Order(Path("nowhere"))
SMOKE_NAMES = ("attack", "sigma-k", "pictures")
SMOKE_WANTED = Wanted(SMOKE_NAMES, sizes=[10], variants=["published"], protocols=["cold"])
SMOKE_ARGUMENTS = (
    *SMOKE_NAMES,
    "--smoke",
    "--variants",
    "published",
    "--protocols",
    "cold",
    "--ipc",
    "10",
    "--devices",
    "cpu",
)


def test_every_figure_of_the_paper_has_a_place_and_something_of_ours_beside_it() -> None:
    found: Counter[Any] = Counter()
    for table in TABLES.values():
        for place in table.places():
            assert table.entries(place) or place.variant, place
            found.update(place.figures.values())
    twice = set(paper_figures("efficiency"))
    assert found == Counter(paper_figures()) + Counter(twice)


def test_every_cell_has_a_folder_of_its_own_and_is_read_back_as_written() -> None:
    cells = Wanted(seeds=2).cells(ORDER)
    assert len({ORDER.folder(cell) for cell in cells}) == len(cells) == len(set(cells))
    for cell in cells:
        assert ReproductionCell.from_json(json.loads(json.dumps(cell.as_json()))) == cell


def test_names_of_corruptions_networks_and_metrics_are_known() -> None:
    variants = {place.variant for place in TABLES["shift"].places()}
    assert len(variants) == 10
    assert {corruption_of(variant) for variant in variants} <= set(CORRUPTIONS)
    assert {place.variant for place in TABLES["networks"].places()} == set(NETWORKS)
    assert {metric for table in TABLES.values() for metric in table.metrics} == set(UNITS)


def test_the_published_plan_is_the_paper_s() -> None:
    plan = Scale().plan(ReproductionCell(Made("cifar10", 10, "published"), "expert"))
    method = {"expert_epochs": 0, "max_start_epoch": None, "steps": 100, "step_size": 0.01, "sigma": 0.001, "chains": 1}
    assert plan.method_options == method
    assert (plan.expert_count, plan.experts.epochs, plan.experts.batch_size) == (100, 50, 256)
    learning = plan.construction
    assert (learning.iterations, learning.optimiser, learning.momentum, learning.averaging) == (2000, "sgd", 0.0, 0.0)
    assert (learning.initialisation, learning.augment, learning.mixed_kinds) == ("random", True, False)
    sampled = plan.sampling
    assert (sampled.sampler, sampled.steps, sampled.step_size) == ("langevin", 100, 0.01)
    assert (sampled.start_epoch, sampled.start_noise, sampled.temperature) == (None, 0.001, 1.0)
    cold = Scale().plan(ReproductionCell(Made("cifar10", 10, "published"))).sampling
    assert (cold.steps, cold.step_size, cold.temperature, cold.start_noise) == (1000, 0.1, 0.01, 0.0)


def test_first_seeds_come_first_and_a_coreset_s_judgements_follow_one_another() -> None:
    cells = Wanted(["main", "shift"], seeds=2, datasets=["cifar10"]).cells(ORDER)
    seeds = [cell.made.seed for cell in cells]
    assert seeds == sorted(seeds)
    assert cells[0].made.variant == "published"
    coresets = [made for made, _ in groupby(cells, key=lambda cell: cell.made)]
    assert len(coresets) == len(set(coresets))


def test_what_is_asked_for_is_what_is_listed(bpc: Invoke) -> None:
    rows = {row["name"]: row for row in json.loads(bpc("reproduce", "list", "--json", "--ipc", "10").stdout)}
    assert list(rows) == list(TABLES)
    assert rows["shift"]["done"] == rows["shift"]["possible"] == 0
    assert "'data' does not hold cifar10" in rows["shift"]["missing"]
    assert rows["no-augmentation"]["cells"] == len(Wanted(["no-augmentation"], sizes=[10]).cells(ORDER))
    named = {"--variants": "variant", "--datasets": "data set", "--protocols": "protocol"}
    refused = {("main", option, "nobody"): f"There is no {kind} named 'nobody'" for option, kind in named.items()}
    refused |= {("nobody",): "There is no table named 'nobody'", ("main", "--ipc", "ten"): "whole numbers"}
    for wrong, said in {**refused, ("main",): "None of the cells"}.items():
        result = bpc("reproduce", *wrong)
        assert result.exit_code == 2
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_fewer_experts_of_fewer_epochs_take_less_time(bpc: Invoke) -> None:
    def seconds(*options: str) -> int:
        listed = bpc("reproduce", "list", "--json", "--smoke", "--variants", "herding", *options)
        return next(row["seconds"] for row in json.loads(listed.stdout) if row["name"] == "coresets")

    assert seconds("--expert-epochs", "6") == seconds() < seconds("--expert-epochs", "600000")


def test_a_smoke_test_does_not_count_with_the_corruptions_and_attacks_of_all_test_images(bpc: Invoke) -> None:
    rows = {row["name"]: row for row in json.loads(bpc("reproduce", "list", "--json", "--smoke").stdout)}
    assert rows["attack"]["seconds"] < ATTACK_SECONDS
    assert rows["shift"]["seconds"] < rows["shift"]["cells"] * SHIFT_SECONDS / 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("reproduce")
    where = ("--out", str(folder / "out"), "--data-dir", str(folder / "data"))
    return folder / "out", CliRunner().invoke(build_app(), ["reproduce", *SMOKE_ARGUMENTS, *where])


def test_the_smoke_test_goes_all_the_way(finished: tuple[Path, Any]) -> None:
    out, result = finished
    assert result.exit_code == 0, result.output
    records = read_records(out)
    assert set(records) == set(SMOKE_WANTED.cells(Order(out, scale=SMOKE)))
    attacked = next(document for cell, document in records.items() if cell.test == "attack" and cell.role == "coreset")
    assert set(attacked) >= {"command", "commit", "device", "seconds", "plan", "metrics"}
    assert attacked["attack"]["pgd"]["8/255"]["ensemble"] <= 1
    rates = [each["learning_rate"] for each in attacked["construction"]["choice"]]
    assert rates == list(SMOKE.rates)
    best = max(attacked["construction"]["choice"], key=lambda each: each["accuracy"])
    assert attacked["construction"]["learning_rate"] == best["learning_rate"]


def test_a_cell_that_was_changed_is_not_shown(finished: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = finished
    for path in sorted((out / "cells").glob("*/*/metrics.json"))[:2]:
        copy = tmp_path / path.relative_to(out)
        copy.parent.mkdir(parents=True)
        copy.write_bytes(path.read_bytes())
    assert len(read_records(tmp_path)) == 2
    copy.write_text(copy.read_text().replace('"accuracy": 0.', '"accuracy": 1.'))
    assert len(read_records(tmp_path)) == 1


def test_the_page_is_complete_and_its_numbers_lead_to_their_cells(finished: tuple[Path, Any]) -> None:
    out, _ = finished
    page, tables = (out / "index.html").read_text(), (out / "tables.md").read_text()
    assert "mean nothing" in page
    assert "mean nothing" in tables
    assert 'src="http' not in page
    assert "<script" not in page
    assert page.count("data:image/png") == 1
    anchors = {part.split('"')[0] for part in page.split('href="#cell-')[1:]}
    assert anchors
    assert all(f'id="cell-{anchor}"' in page for anchor in anchors)
    judged = [document["metrics"] for cell, document in read_records(out).items() if cell.slug == "cold-clean-coreset"]
    assert judged
    assert all(f">{100 * metrics['ensemble']['accuracy']:.1f}</a></td>" in page for metrics in judged)
    assert "| cifar10 | 10 | sigma=0.01 | bpc-cd | cd as published, cold | 50.18 ± 0.5 |" in tables


def test_a_column_of_the_page_is_there_if_anything_can_stand_in_it(finished: tuple[Path, Any]) -> None:
    out, _ = finished
    tables = (out / "index.html").read_text().split('<table class="results">')[1:]
    for table in tables:
        head, *rows = table.split("</table>")[0].split("<tr>")[1:]
        assert {row.count("<td") + row.count("<th") for row in rows} == {head.count("<th ")}
    rivals = next(table for table in tables if "construction seconds" in table)
    assert '<th scope="col">construction seconds</th>' in rivals
    assert "accuracy, paper" in rivals
    assert "ece, paper" not in rivals


LOOK = """(() => {
  const wide = document.documentElement, link = document.querySelector(".worse a, .better a")
  const details = document.getElementById(link.hash.slice(1)).closest("details"), before = details.open
  link.click()
  return [wide.scrollWidth - wide.clientWidth, before, details.open, getComputedStyle(link).color]
})()"""


@pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [1440, 390])
def test_a_browser_shows_the_page_within_its_width_and_opens_the_cell_of_a_number(
    finished: tuple[Path, Any], tmp_path: Path, width: int
) -> None:
    out, _ = finished
    seen = visit(out / "index.html", tmp_path / "profile", LOOK, width)
    overflow, before, after, colour = seen.answer
    assert seen.problems == []
    assert (overflow, before, after) == (0, False, True)
    assert colour in ("rgb(25, 105, 44)", "rgb(179, 38, 30)")  # ahead, behind


def test_what_is_done_is_not_done_again(finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = finished
    made = []
    real = ReproductionJudge.measure

    def counted(self: ReproductionJudge, cell: ReproductionCell) -> Any:
        made.append(cell)
        return real(self, cell)

    monkeypatch.setattr(ReproductionJudge, "measure", counted)
    where = ["--out", str(out), "--data-dir", str(out.parent / "data")]
    lost = next(out.glob(f"cells/*sigma0.01*/cold-clean-coreset/{RESULT}"))
    lost.unlink()
    none = CliRunner().invoke(build_app(), ["reproduce", *SMOKE_ARGUMENTS, *where, "--budget", "0"])
    assert none.exit_code == 0
    assert made == []
    CliRunner().invoke(build_app(), ["reproduce", *SMOKE_ARGUMENTS, *where])
    assert [str(cell) for cell in made] == [f"{lost.parent.parent.name} {lost.parent.name}"]
    CliRunner().invoke(build_app(), ["reproduce", "page", "--smoke", *where])
    assert len(made) == 1


def test_what_was_made_by_another_plan_is_not_done(finished: tuple[Path, Any], bpc: Invoke) -> None:
    out, _ = finished

    def listed(*options: str) -> dict[str, int]:
        where = ("--out", str(out), "--data-dir", str(out.parent / "data"))
        rows = json.loads(
            bpc("reproduce", "list", "--json", *SMOKE_ARGUMENTS[len(SMOKE_NAMES) :], *where, *options).stdout
        )
        return next(row for row in rows if row["name"] == "sigma-k")

    same, other = listed(), listed("--iterations", "1")
    assert same["done"] == same["cells"] > 0 == same["seconds"]
    assert other["done"] == 0 < other["seconds"]


def test_a_rate_that_was_tried_is_not_tried_again(finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = finished
    lost = next(out.glob(f"cells/*sigma0.01*/construction/{RESULT}"))
    before = json.loads(lost.read_text())["choice"]
    lost.unlink()
    (lost.parent.parent / "cold-clean-coreset" / RESULT).unlink()
    monkeypatch.setattr("pseudocoresets.workflows.reproduce.judge.judge", None)
    where = ["--out", str(out), "--data-dir", str(out.parent / "data")]
    result = CliRunner().invoke(build_app(), ["reproduce", *SMOKE_ARGUMENTS, *where])
    assert result.exit_code == 0, result.output
    assert json.loads(lost.read_text())["choice"] == before


def test_an_attack_that_is_over_is_not_made_again(finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = finished
    whole = next(out.glob(f"cells/*/cold-attack-coreset/{RESULT}"))
    before = json.loads(whole.read_text())["attack"]
    whole.unlink()
    (whole.parent / "pgd-8-255" / RESULT).unlink()
    made: list[Sequence[Attack]] = []

    def counted(samples: Any, split: Any, epsilon: float, attacks: Sequence[Attack], images: int) -> Any:
        made.append(attacks)
        return attack_chains(samples, split, epsilon, attacks, images)

    monkeypatch.setattr("pseudocoresets.workflows.reproduce.judge.attack_chains", counted)
    where = ["--out", str(out), "--data-dir", str(out.parent / "data")]
    CliRunner().invoke(build_app(), ["reproduce", *SMOKE_ARGUMENTS, *where])
    assert made == [SMOKE.attacks["pgd"]]
    assert json.loads(whole.read_text())["attack"] == before


def test_the_seconds_of_a_construction_are_without_the_training_of_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of several constructions comes first and trains them says nothing of the method."""
    now, hour = 0.0, 3600.0

    def train_for_an_hour(*given: Any) -> Experts:
        nonlocal now
        now += hour
        return experts_for(*given)

    monkeypatch.setattr("pseudocoresets.workflows.reproduce.judge.experts_for", train_for_an_hour)
    monkeypatch.setattr("pseudocoresets.workflows.reproduce.judge.time", SimpleNamespace(perf_counter=lambda: now))
    order = Order(tmp_path / "out", tmp_path / "data", scale=SMOKE)
    cell = ReproductionCell(Made("digits", 1, "herding", SMOKE_NETWORKS[CONVNET]))
    measured = ReproductionJudge(order, workplace("cpu")).measure(cell)
    assert (measured["construction"]["construct_seconds"], measured["seconds"]) == (0.0, hour)


def record(cell: ReproductionCell, accuracy: list[float], average: float) -> dict[str, Any]:
    metrics = {name: {"values": accuracy} for name in ("accuracy", "nll", "ece", "brier")}
    ensemble = dict.fromkeys(("accuracy", "nll", "ece", "brier"), average)
    return {"cell": cell.as_json(), "metrics": {**metrics, "ensemble": ensemble}}


def test_one_chain_decides_who_is_ahead_and_the_average_stands_beside_it() -> None:
    """The paper has 56.39 for CIFAR-10 at ten images per class."""
    cell = ReproductionCell(Made("cifar10", 10, "best"))
    other = replace(cell, made=replace(cell.made, seed=1))
    records = {cell: record(cell, [0.55, 0.56], 0.60), other: record(other, [0.56, 0.57], 0.61)}
    lines = [line for line in lines_of(TABLES["main"], records, Scale()) if line.has_records]
    (line,) = lines
    accuracy, nll = line.comparisons
    assert accuracy.ours is not None
    assert accuracy.ours.mean == pytest.approx(56.0)
    assert accuracy.ours.averaged == pytest.approx(60.5)
    assert (accuracy.verdict, nll.verdict) == ("worse", "")
    (row,) = [text for text in markdown(TABLES["main"], lines) if text.startswith("| cifar10")]
    assert "| 56.39 ± 0.7 | 56.0 ± 0.8 | 60.5 |" in row
    records[cell] = record(cell, [0.60, 0.61], 0.60)
    ahead = [line for line in lines_of(TABLES["main"], records, Scale()) if line.has_records]
    assert ahead[0].comparisons[0].verdict == "better"


def test_a_coreset_of_a_rival_has_one_row_with_both_protocols_and_its_cost() -> None:
    """Ten images of CIFAR-10: the paper has 51.85 for dsa, whose schedule is 10,000 iterations."""
    made = Made("cifar10", 10, "dsa")
    cost = {"construction": {"iterations": 3000, "construct_seconds": 61.2, "peak_memory": 5.1e9}}
    cells = {protocol: ReproductionCell(made, protocol) for protocol in ("point", "cold")}
    records = {
        cells["point"]: record(cells["point"], [0.52, 0.53], 0.54) | cost,
        cells["cold"]: record(cells["cold"], [0.50, 0.50], 0.51) | cost,
    }
    lines = lines_of(TABLES["condensation"], records, Scale())
    (row,) = [text for text in markdown(TABLES["condensation"], lines) if text.startswith("| cifar10")]
    words = [word.strip() for word in row.split("|")[1:-1]]
    assert words[:4] == ["cifar10", "10", "dsa", "51.85 ± 0.43"]
    assert words[4].startswith("**52.5") and words[5].startswith("50.0")
    assert words[6:] == ["51.0", "0.51", "0.510", "3,000 of 10,000", "61", "5.10"]


@pytest.mark.parametrize(("variant", "updates"), [("gm", 10), ("dsa", 10), ("mtt", 1), ("published", 1)])
def test_an_iteration_is_what_the_paper_calls_one(variant: str, updates: int) -> None:
    """It counts the networks of gradient matching, each of which serves ten updates at ten images per class."""
    cell = ReproductionCell(Made("cifar10", 10, variant), test="cost")
    cost = {"construction": {"seconds_per_iteration": 0.02, "peak_memory": 5e9}, "plan": Scale().plan(cell).as_json()}
    (line,) = [line for line in lines_of(TABLES["efficiency"], {cell: cost}, Scale()) if line.has_records]
    memory, seconds = (each.ours for each in line.comparisons)
    assert memory is not None and seconds is not None
    assert (memory.mean, seconds.mean) == (pytest.approx(5.0), pytest.approx(0.02 * updates))


def test_only_says_what_is_made_in_which_order_and_how_much_of_it(bpc: Invoke) -> None:
    scale = Scale(shares={("dsa", 10): 0.3, ("dm", 50): 1.0})
    cells = Wanted(["condensation"], datasets=["cifar10"], only=list(scale.shares)).cells(Order(Path("out")))
    assert [(cell.made.variant, cell.protocol) for cell in cells] == [
        ("dsa", "point"),
        ("dsa", "cold"),
        ("dm", "point"),
        ("dm", "cold"),
    ]
    assert [scale.plan(cell).construction.iterations for cell in cells] == [3000, 3000, 20000, 20000]
    for wrong in ("dsa", "dsa:ten", "nobody:10", "dsa:10:1.5", "dsa:10:0.5:1"):
        result = bpc("reproduce", "condensation", "--only", wrong)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1


def test_a_budget_counts_with_how_slow_the_device_was_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("pseudocoresets.workflows.reproduce.schedule.time.time", lambda: now)
    clock = Clock(now, until=200.0)
    assert clock.affords(20)
    now = 140.0  # twice the estimate: what is left is worth 30 estimated seconds
    assert not clock.affords(31)
    assert clock.affords(29)
    now = 145.0  # faster than 49 estimated seconds, which is no reason to count on it
    assert not clock.affords(56)
    assert Clock(now).affords(1e9)


def test_a_control_is_judged_only_beside_a_coreset_that_is_there(tmp_path: Path) -> None:
    order = Order(tmp_path / "out", coresets=tmp_path, scale=replace(SMOKE, is_smoke=False))
    wanted = Wanted(["main"], datasets=["cifar10"], sizes=[10], variants=["best"], protocols=["cold"])
    cells, judged = wanted.cells(order), []
    assert [cell.role for cell in cells] == ["coreset", "control"]

    class Failing:
        folder = order.folder

        def identity(self, cell: ReproductionCell) -> dict[str, Any]:
            return {}

        def measure(self, cell: ReproductionCell) -> dict[str, Any]:
            judged.append(cell.role)
            raise ValueError("no coreset")

    list(judge_coreset(cells, Failing(), order, Clock(0.0)))
    (tmp_path / "cifar10-ipc10-best.safetensors").touch()
    list(judge_coreset(cells, Failing(), order, Clock(0.0)))
    assert judged == ["coreset", "coreset", "control"]


def test_shift_is_the_mean_over_severities() -> None:
    cell = ReproductionCell(Made("cifar10", 10, "best"), test="shift")
    clean = record(cell, [0.9, 0.9], 0.9)
    severities = {str(s): record(cell, [0.1 * s, 0.1 * s + 0.02], 0.1 * s)["metrics"] for s in (1, 2, 3)}
    records = {cell: clean | {"shift": {"impulse_noise": severities}}}
    lines = [line for line in lines_of(TABLES["shift"], records, Scale()) if line.has_records]
    assert [line.place.variant for line in lines] == ["impulsive noise"]
    reading = lines[0].comparisons[0].ours
    assert reading is not None
    assert reading.runs == pytest.approx((20.0, 22.0))
    assert reading.averaged == pytest.approx(20.0)


def test_recorded_coresets_are_judged_instead_of_new_ones(tmp_path: Path) -> None:
    (tmp_path / "cifar10-ipc10-bptt.safetensors").touch()
    order = Order(tmp_path / "out", coresets=tmp_path)
    best = ReproductionCell(Made("cifar10", 10, "best"))
    assert order.recorded(best) == tmp_path / "cifar10-ipc10-bptt.safetensors"
    (tmp_path / "cifar10-ipc10-best.safetensors").touch()
    assert order.recorded(best) == tmp_path / "cifar10-ipc10-best.safetensors"
    others = (
        Made("cifar10", 10, "best", seed=1),
        Made("cifar10", 10, "best", "vgg11"),
        Made("cifar10", 10, "best", augment=False),
        Made("cifar10", 1, "best"),
        Made("cifar10", 10, "published"),
    )
    for other in others:
        assert order.recorded(ReproductionCell(other)) is None


def test_every_variant_says_what_it_is() -> None:
    assert all(variant.title for variant in VARIANTS.values())
    assert VARIANTS["published"].chooses_rate
    assert [place for place in TABLES["pictures"].places() if isinstance(place, Place)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cell": {"made": {}}}, "lacks 'dataset'"),
        ({"cell": Made("digits", 1, "best").__dict__}, "lacks 'made'"),
        ({"metrics": {"ensemble": {"nll": "low"}}}, "'nll' is the text 'low'"),
        ({"metrics": {"accuracy": {"values": 0.5}, "ensemble": {}}}, "'values' is 0.5"),
        ({"construction": {"iterations": [3]}}, "'iterations' is"),
        ({"seconds": -1}, "'seconds' is -1"),
        ({"plan": {"method": "gm"}}, "lacks 'method_options'"),
    ],
)
def test_a_forged_record_is_refused_in_one_sentence(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    """Its checksum in order, so that only its content tells."""
    cell = ReproductionCell(Made("cifar10", 1, "best"))
    plan = Scale().plan(cell).as_json()
    once(tmp_path / "cells" / "made" / "cell", {"cell": cell.as_json(), "plan": plan}, lambda: {"seconds": 3.0})
    assert list(read_records(tmp_path)) == [cell]
    once(tmp_path / "cells" / "made" / "other", {"cell": cell.as_json(), "plan": plan, **changes}, dict)
    with pytest.raises(FileFormatError, match=f"cannot be used: .*{problem}"):
        read_records(tmp_path)


def test_a_metric_that_is_not_finite_is_shown_as_such() -> None:
    """JSON has null for it."""
    document = {"metrics": {"nll": {"values": [None, 1.0]}, "ensemble": {"nll": None}}}
    place = Place("cifar10", 1, "fkl", "", {})
    single, average = _values("nll", place, document)
    assert math.isnan(single[0]) and single[1] == 1.0 and average is not None and math.isnan(average)


def test_a_failure_without_a_reason_is_still_one(tmp_path: Path) -> None:
    for name, content in {"a": b"", "b": b"Traceback\nValueError: no\n", "c": b"\xff"}.items():
        (tmp_path / "cells" / "made" / name).mkdir(parents=True)
        (tmp_path / "cells" / "made" / name / "failure.txt").write_bytes(content)
    found = failures(tmp_path)
    assert found["made a"] == "It was not recorded why." and found["made b"] == "ValueError: no"
    assert "is not text in UTF-8" in found["made c"]
