"""Units of work for other processes, which import this module alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from threadpoolctl import threadpool_info

from pseudocoresets.core.errors import InputError


def squared(number: int, log: Path, killed_once: int | None = None, seconds: float = 0.0) -> int:
    """Leaves a mark for every attempt; the first at ``killed_once`` ends its process."""
    (log / f"{number} {os.getpid()}").touch()
    if number == killed_once and attempts(log, number) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number < 0:
        raise InputError("Numbers are not negative.")
    time.sleep(seconds)
    return number * number


def attempts(log: Path, number: int) -> int:
    return len(list(log.glob(f"{number} *")))


def thread_pools(number: int) -> list[int]:
    """How many threads each BLAS of this process has."""
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
