"""Which device to compute on."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from pseudocoresets.core.errors import DeviceMemoryError, InputError

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

HOST = torch.device("cpu")
SMALL_IMAGE = 16 * 16 * 3
"""Values an image; on two cores, ten digits of 8 x 8 are slower on two threads than on one."""


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """``auto`` is the GPU where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        resolved = None
    if resolved is None or resolved.type not in ("cpu", "cuda"):
        raise InputError(f"The device must be auto, cpu or cuda; got '{device}'.")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device here; use --device cpu, or auto.")
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise InputError(f"There are {torch.cuda.device_count()} CUDA devices here, counted from 0; got '{device}'.")
    return resolved


@contextmanager
def threads_for(shape: Sequence[int], small: int = SMALL_IMAGE) -> Iterator[None]:
    """Compute on one thread where arrays are small: several spend more time waiting for one another than they save.

    The choice is left to OMP_NUM_THREADS where that is set, and torch's own setting is back when the block ends.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ and math.prod(shape) <= small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit_threads(threads: int) -> None:
    """Let torch and NumPy compute on so many threads from now on: those of several processes would wait for cores."""
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    threadpool_limits(threads, user_api="blas")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let SciPy's optimisers, whose matrices are tiny, compute on one thread; torch's threads are others.

    The choice is left to OMP_NUM_THREADS and OPENBLAS_NUM_THREADS where they are set.
    """
    if "OMP_NUM_THREADS" in os.environ or "OPENBLAS_NUM_THREADS" in os.environ:
        yield
        return
    with _thread_pools().limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _thread_pools() -> ThreadpoolController:
    """The libraries in this process that have threads of their own, SciPy's among them."""
    import scipy.optimize  # noqa: F401  (loads its BLAS)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def host_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(wanted: float, what: str, advice: str = "use a larger machine") -> None:
    """Refuse before the work what cannot fit in this machine's memory."""
    if wanted > host_memory():
        raise InputError(
            f"{what[0].upper()}{what[1:]} would need about {wanted / 2**30:,.0f} GiB of memory, and this machine has "
            f"{host_memory() / 2**30:,.0f} GiB; {advice}."
        )


OUT_OF_HOST_MEMORY = ("tried to allocate", "can't allocate memory", "not enough memory")
"""How torch says it."""


OUT_OF_DEVICE_MEMORY = ("out of memory", "ALLOC_FAILED")
"""How the CUDA runtime, cuBLAS, cuDNN and Triton say it, which torch passes on."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the host or the device ran out, or an error came of that; torch says some by RuntimeError."""
    if isinstance(error, MemoryError) or _is_of_device(error) or _says(error, OUT_OF_HOST_MEMORY):
        return True
    return error.__context__ is not None and is_out_of_memory(error.__context__)


def _is_of_device(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or _says(error, OUT_OF_DEVICE_MEMORY)


def _says(error: BaseException, words: Sequence[str]) -> bool:
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


class PeakMemory:
    """The most memory used within a block: allocated on a GPU, resident in the process otherwise.

    Where the system cannot forget an earlier peak, the latter is the process's peak so far.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.bytes = 0

    def __enter__(self) -> PeakMemory:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device)
        else:
            self.bytes = _peak_resident()


def _peak_resident() -> int:
    try:
        status = Path("/proc/self/status").read_text().split()
        return int(status[status.index("VmHWM:") + 1]) * 1024
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def device_memory_error(doing: str, advice: str, error: BaseException) -> DeviceMemoryError:
    """What was asked for, what there is, and what to change, in one sentence."""
    if not _is_of_device(error):
        return DeviceMemoryError(f"This machine has too little memory for {doing}; {advice}.")
    asked = str(error).split("\n")[0].split(". ")[0]
    return DeviceMemoryError(f"The device has too little memory for {doing}{_figures()}; {advice}. [{asked}]")


@contextmanager
def within_memory(doing: str, advice: str) -> Iterator[None]:
    """Memory that runs out within the block is a ``DeviceMemoryError``."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise device_memory_error(doing, advice, error) from None


def _figures() -> str:
    """How much memory there is, unless there is not even enough to ask."""
    if not torch.cuda.is_available():
        return ""
    try:
        free, total = (value / 2**30 for value in torch.cuda.mem_get_info())
    except RuntimeError:
        return ""
    held = torch.cuda.memory_allocated() / 2**30
    return f" ({held:.1f} GiB held here, {free:.1f} GiB free of {total:.1f} GiB)"
