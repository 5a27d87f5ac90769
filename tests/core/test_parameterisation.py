"""Free tensors and the points behind them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pseudocoresets.core.parameterisation import Parameterisation, TargetRange
from pseudocoresets.core.points import Points

TARGETS = {
    "fixed": torch.tensor([0.0, 3.0, -2.0]),
    "real": torch.tensor([0.5, 3.0, -2.0]),
    "positive": torch.tensor([0.5, 3.0, 20.0]),
    "unit": torch.tensor([0.25, 0.5, 0.9]),
}


def start(y: torch.Tensor) -> Points:
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Points(x, y, torch.tensor([1.0, 2.0, 7.0], dtype=torch.float64))


@pytest.mark.parametrize("target_range", TARGETS)
@pytest.mark.parametrize("keep_total", [True, False])
def test_the_start_is_what_it_was_given(target_range: TargetRange, keep_total: bool) -> None:
    points = start(TARGETS[target_range].double())
    scale = torch.tensor([2.0, 0.5], dtype=torch.float64)
    form = Parameterisation(points, target_range, True, keep_total, scale)
    again = form.points(form.initial())
    for name in ("x", "y", "weights"):
        torch.testing.assert_close(getattr(again, name), getattr(points, name))


def test_hard_labels_start_as_probabilities_of_99_percent() -> None:
    form = Parameterisation(start(torch.tensor([0, 2, 1])), "simplex", classes=3)
    y = form.points(form.initial()).y
    torch.testing.assert_close(y.max(-1).values, torch.full((3,), 0.99, dtype=torch.float64))
    assert y.argmax(-1).tolist() == [0, 2, 1]
    torch.testing.assert_close(y.sum(-1), torch.ones(3, dtype=torch.float64))


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_learned_weights_stay_positive_and_keep_their_total_if_asked(free: list[float]) -> None:
    values = torch.tensor(free, dtype=torch.float64)
    for keep_total in (True, False):
        form = Parameterisation(start(TARGETS["real"]), learn_weights=True, keep_total=keep_total)
        weights = form.points({**form.initial(), "weights": values}).weights
        assert bool((weights > 0).all())
        if keep_total:
            torch.testing.assert_close(weights.sum(), torch.tensor(10.0, dtype=torch.float64))


def test_the_flat_vector_is_the_free_tensors_one_after_another() -> None:
    form = Parameterisation(start(TARGETS["unit"]), "unit", True, False)
    free = form.initial()
    back = form.unflattened(form.flattened(free))
    assert list(back) == list(free)
    for name, tensor in free.items():
        torch.testing.assert_close(back[name], tensor.double())
