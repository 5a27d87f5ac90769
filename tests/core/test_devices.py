"""Threads are fitted to the work, and the user's own choice is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pseudocoresets.core.devices import threads_for


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("shape", "chosen", "expected"),
    [((1, 8, 8), None, 1), ((1, 8, 8), "2", 2), ((3, 32, 32), None, 2)],
    ids=["small", "small, but the user chose", "large"],
)
def test_threads(
    shape: tuple[int, int, int], chosen: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chosen is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    with threads_for(shape):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2
