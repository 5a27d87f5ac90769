"""The paper's figures as they are shipped: whole, and of one mind where tables repeat one another."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from pseudocoresets.evaluation.paper import PAPER_NAMES, best_paper_accuracy, paper_figure, paper_figures

ROWS = {
    "bpc": 136,
    "coresets": 64,
    "condensation": 125,
    "ood": 100,
    "adversarial": 8,
    "cross-architecture": 12,
    "parameters": 24,
    "ablation": 12,
    "mcmc": 9,
    "calibration": 8,
    "no-dsa": 10,
    "efficiency": 24,
}
SLIPS = {("cifar10", 10, "bpc-fkl (hmc)"), ("cifar10", 10, "bpc-rkl (sghmc)")}
"""Two cells that the paper prints differently in several of its tables."""


def test_every_table_is_whole_and_no_figure_is_there_twice() -> None:
    assert Counter(figure.table for figure in paper_figures()) == ROWS
    keys = Counter(
        (each.table, each.dataset, each.ipc, each.method, each.variant, each.metric) for each in paper_figures()
    )
    assert max(keys.values()) == 1


def test_values_are_what_their_metric_can_be() -> None:
    for figure in paper_figures():
        most = 100 if "accuracy" in figure.metric else 2 if figure.metric in ("ece", "brier") else 70
        assert 0 < figure.value < most, figure
        assert figure.std is None or figure.std >= 0


def test_tables_that_repeat_a_cell_agree() -> None:
    """Clean accuracy with no variant, or with the variant that is the main experiment's own."""
    plain = {"", "convnet", "convnet-d3w128 (320010)", "sigma=0.001", "k=100"}
    found = defaultdict(set)
    for figure in paper_figures():
        if figure.metric in ("accuracy", "clean accuracy") and figure.variant in plain:
            found[figure.dataset, figure.ipc, figure.method].add(figure.value)
    assert {key for key, values in found.items() if len(values) > 1} == SLIPS


def test_names_of_our_methods_are_names_of_the_paper() -> None:
    assert set(PAPER_NAMES.values()) <= {figure.method for figure in paper_figures()}


@pytest.mark.parametrize(
    ("method", "value"), [("cd", 0.5639), ("fkl", 0.4985), ("mtt", 0.6427), ("herding", 0.316), ("fkl-hmc", None)]
)
def test_one_cell(method: str, value: float | None) -> None:
    assert paper_figure("cifar10", 10, method, "accuracy") == (None if value is None else pytest.approx(value))


def test_the_best_of_a_cell_is_that_of_any_method() -> None:
    assert best_paper_accuracy("cifar10", 10) == pytest.approx(0.6427)
    assert best_paper_accuracy("digits", 10) is None
