"""Rows as people have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import Rows
from pseudocoresets.core.seeds import Randomness


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.eye(3, dtype=np.float32), np.array([[0], [1], [1]])),
        (torch.eye(3, dtype=torch.float32), torch.tensor([0, 1, 1])),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [0.0, 1.0, 1.0]),
    ],
    ids=["NumPy, y a column", "single precision", "lists"],
)
def test_rows_become_tensors_of_double_precision(x: object, y: object) -> None:
    rows = Rows(x, y)  # type: ignore[arg-type]
    torch.testing.assert_close(rows.x, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(rows.y, torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64))


def test_rows_in_double_precision_are_not_copied() -> None:
    x = torch.eye(3, dtype=torch.float64)
    assert Rows(x, x[0]).x is x


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (np.ones((3, 2)), np.ones(2), "as many targets as points"),
        (np.ones(3), np.ones(3), r"x \(n, features\)"),
        (np.ones((3, 0)), np.ones(3), r"x \(n, features\)"),
        (np.ones((1, 1)) * 1j, np.ones(1), "x must hold real numbers"),
        (torch.ones(1, 1), torch.ones(1) * 1j, "y must hold real numbers"),
        (np.full((1, 1), -1e200), np.ones(1), r"x holds a value of size 1e\+200; use units"),
        (np.array([["a"]]), np.ones(1), "x must be a tensor or an array of numbers"),
        (np.ones((1, 1)), np.array([np.inf]), "y holds a value that is not finite"),
    ],
)
def test_what_cannot_be_rows_is_refused(x: object, y: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Rows(x, y)  # type: ignore[arg-type]


def test_a_batch_is_drawn_uniformly_with_replacement() -> None:
    rows, randomness = Rows(torch.arange(40.0)[:, None], torch.arange(40.0)), Randomness.for_purpose(0)
    drawn = torch.cat([rows.batch(39, randomness)[0] for _ in range(200)])
    counts = torch.bincount(drawn[:, 0].long(), minlength=40)
    assert float(((counts - 195) / (7800 * 1 / 40 * 39 / 40) ** 0.5).abs().max()) < 4.5


def test_a_batch_of_as_many_as_there_are_is_all_of_them() -> None:
    rows = Rows(torch.arange(4.0)[:, None], torch.arange(4.0))
    assert torch.equal(rows.batch(9, Randomness.for_purpose(0))[0], rows.x)
