"""Threads are fitted to the work, the user's own choice is left alone, and memory that ran out is recognised."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scipy.optimize  # noqa: F401  (loads its BLAS)
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from pseudocoresets.core.devices import device_memory_error, is_out_of_memory, one_blas_thread, threads_for


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


def raised_while(handling: Exception) -> Exception:
    """An error that came of another."""
    try:
        try:
            raise handling
        except Exception:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB."), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), True),
        (raised_while(torch.OutOfMemoryError("CUDA out of memory.")), True),
        (raised_while(ValueError("another")), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
    ids=str,
)
def test_memory_that_ran_out_is_recognised(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) == is_memory


def test_memory_of_the_device_is_named_in_one_sentence() -> None:
    error = RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously.")
    said = str(device_memory_error("an iteration of 'cd'", "lower --ipc", error))
    assert said == "The device has too little memory for an iteration of 'cd'; lower --ipc. [CUDA error: out of memory]"
