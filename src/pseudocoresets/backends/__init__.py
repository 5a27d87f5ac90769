"""How the library computes: one interface, a plain implementation and a fused one, and the place that chooses."""

from __future__ import annotations

import logging

import torch

from pseudocoresets.backends.backend import Backend, ChainPlan, ChainRunner, MeanEnergies
from pseudocoresets.backends.plain import PlainBackend
from pseudocoresets.core.devices import resolve_device
from pseudocoresets.core.settings import require_precision

__all__ = ["Backend", "ChainPlan", "ChainRunner", "MeanEnergies", "PlainBackend", "choose_backend"]

logger = logging.getLogger(__name__)


def choose_backend(device: str | torch.device = "auto", precision: str = "auto") -> Backend:
    """The backend for a device.

    What it captures or compiles it keeps, so that a job with several parts should use one backend for all of them.

    Args:
        device: ``auto`` is the GPU where there is one. A GPU by its number becomes torch's current device, on which
            kernels are launched and graphs captured.
        precision: ``auto`` is bfloat16 and captured graphs on a GPU; ``float32`` is the plain backend everywhere.
    """
    require_precision(precision)
    resolved = resolve_device(device)
    if resolved.type != "cuda" or precision == "float32":
        return PlainBackend()
    try:
        from pseudocoresets.backends.fused import FusedBackend
    except ImportError:
        logger.warning("Triton is not installed here, so the plain path is used; it is many times slower.")
        return PlainBackend()
    if resolved.index is not None:
        torch.cuda.set_device(resolved)
    return FusedBackend(resolved)
