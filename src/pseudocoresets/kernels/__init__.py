"""Samplers by name: one Markov transition each.

NUTS draws whole runs instead of single transitions, so it stands beside them as ``sample_nuts``.
"""

from __future__ import annotations

from collections.abc import Callable

from pseudocoresets.core.registry import Registry
from pseudocoresets.kernels.adaptation import DualAveraging, WarmUp, adapt_step_size, warm_up, with_step_size
from pseudocoresets.kernels.chain import Chain, advance, run_chain
from pseudocoresets.kernels.hmc import HMC
from pseudocoresets.kernels.kernel import AnyKernel, Info, Kernel, is_adjusted
from pseudocoresets.kernels.langevin import Langevin
from pseudocoresets.kernels.mala import MALA
from pseudocoresets.kernels.nuts import NutsRun, sample_nuts
from pseudocoresets.kernels.schedules import SCHEDULES, Constant, Cosine, Cyclical, Polynomial, Schedule, explores
from pseudocoresets.kernels.sghmc import SGHMC

__all__ = [
    "HMC",
    "KERNELS",
    "MALA",
    "SCHEDULES",
    "SGHMC",
    "AnyKernel",
    "Chain",
    "Constant",
    "Cosine",
    "Cyclical",
    "DualAveraging",
    "Info",
    "Kernel",
    "Langevin",
    "NutsRun",
    "Polynomial",
    "Schedule",
    "WarmUp",
    "adapt_step_size",
    "advance",
    "explores",
    "is_adjusted",
    "run_chain",
    "sample_nuts",
    "warm_up",
    "with_step_size",
]

KERNELS: Registry[Callable[..., AnyKernel]] = Registry(
    "sampler",
    {"langevin": Langevin, "mala": MALA, "sghmc": SGHMC, "hmc": HMC},
    group="pseudocoresets.kernels",
)
"""Every Markov kernel by name; each takes ``step_size``."""
