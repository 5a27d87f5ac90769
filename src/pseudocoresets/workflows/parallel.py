"""Work in several processes, one thread each: what is small leaves the other cores of a machine idle."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import torch

from pseudocoresets.core.errors import InputError

Mapper: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Results of a function for each item, in order."""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def processes(jobs: int) -> Iterator[Mapper]:
    """``map``, in this process or in ``jobs`` others, which end with the block and take on nothing new if it fails."""
    if jobs < 1:
        raise InputError(f"Ask for at least one process (jobs); got {jobs}.")
    if jobs == 1:
        yield map
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_use_one_thread) as pool:
        try:
            yield pool.map
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def require_sendable(thing: object, what: str) -> None:
    """Refuse what another process cannot be given."""
    try:
        ForkingPickler.dumps(thing)
    except Exception as error:
        raise InputError(
            f"{what} cannot be sent to another process ({error}); use jobs=1, or define its functions in a module."
        ) from None


def _use_one_thread() -> None:
    torch.set_num_threads(1)
