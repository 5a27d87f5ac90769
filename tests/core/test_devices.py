"""Threads are fitted to the work, and the user's own choice is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scipy.optimize  # noqa: F401  (loads its BLAS)
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from pseudocoresets.core.devices import one_blas_thread, threads_for


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


@pytest.mark.parametrize("chosen", [None, "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_tiny_optimisations_use_one_thread_of_blas(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if chosen is not None:
        monkeypatch.setenv(chosen, "2")
    with threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        with one_blas_thread():
            assert blas_threads() == {1 if chosen is None else 2}
        assert blas_threads() == {2}


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
