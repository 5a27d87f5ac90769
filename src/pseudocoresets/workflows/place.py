"""Where the work is done: the device, the backend that computes there, and who is told of the progress."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pseudocoresets.backends import Backend, choose_backend
from pseudocoresets.core.devices import resolve_device
from pseudocoresets.core.progress import Progress, Silent


@dataclass(frozen=True)
class Workplace:
    """What goes through every step of a workflow; one backend for all of them keeps what it has captured."""

    device: torch.device
    backend: Backend
    progress: Progress


def workplace(
    device: str | torch.device = "auto", precision: str = "auto", progress: Progress | None = None
) -> Workplace:
    """The device of that name with its backend; ``precision`` is that of ``choose_backend``."""
    resolved = resolve_device(device)
    return Workplace(resolved, choose_backend(resolved, precision), progress or Silent())
