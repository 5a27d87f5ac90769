"""Where the work is done: the device, the backend that computes there, and who is told of the progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pseudocoresets.backends import Backend, choose_backend
from pseudocoresets.core.devices import resolve_device
from pseudocoresets.core.mapping import Mapper, in_this_process
from pseudocoresets.core.progress import Progress, Silent


@dataclass(frozen=True)
class Workplace:
    """What goes through every step of a workflow; one backend for all of them keeps what it has captured.

    Sent to another process it becomes that process's own place: the device it finds, and nobody to be told or to help.
    """

    device: torch.device
    backend: Backend
    progress: Progress
    precision: str = "auto"
    mapper: Mapper = in_this_process
    """Who computes units of one step, such as some of the chains of a posterior."""
    workers: int = 1
    """How many of them there are."""

    def __reduce__(self) -> tuple[Any, ...]:
        return workplace, ("auto", self.precision)


def workplace(
    device: str | torch.device = "auto", precision: str = "auto", progress: Progress | None = None
) -> Workplace:
    """The device of that name with its backend; ``precision`` is that of ``choose_backend``."""
    resolved = resolve_device(device)
    return Workplace(resolved, choose_backend(resolved, precision), progress or Silent(), precision)
