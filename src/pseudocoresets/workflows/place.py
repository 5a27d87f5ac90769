"""Where the work is done: the device, how its fast path computes, and who is told of the progress."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pseudocoresets.backends.fused import set_precision
from pseudocoresets.core.devices import resolve_device
from pseudocoresets.core.progress import Progress, Silent


@dataclass(frozen=True)
class Workplace:
    """A device, and what goes with it through every step of a workflow."""

    device: torch.device
    progress: Progress = field(default_factory=Silent)


def workplace(
    device: str | torch.device = "auto", precision: str = "auto", progress: Progress | None = None
) -> Workplace:
    """The device of that name, with the precision of its fast path."""
    resolved = resolve_device(device)
    set_precision(precision)  # MERGE: backend=choose_backend(resolved, precision), a field of Workplace
    return Workplace(resolved, progress or Silent())
