"""Samplers by name: one Markov transition each."""

from __future__ import annotations

from collections.abc import Callable

from pseudocoresets.core.options import build_named
from pseudocoresets.core.registry import Registry
from pseudocoresets.kernels.adam import Adam
from pseudocoresets.kernels.adaptation import DualAveraging, WarmUp, warm_up, with_step_size
from pseudocoresets.kernels.chain import Chain, advance, run_chain, transitions
from pseudocoresets.kernels.hmc import HMC
from pseudocoresets.kernels.kernel import AdjustedKernel, AnyKernel, Info, Kernel, Run, RunsItself, is_adjusted
from pseudocoresets.kernels.langevin import Langevin
from pseudocoresets.kernels.mala import MALA
from pseudocoresets.kernels.nuts import NUTS
from pseudocoresets.kernels.preconditioned import PreconditionedSGHMC, speeds_at, speeds_one_by_one
from pseudocoresets.kernels.runs import sample_chains
from pseudocoresets.kernels.schedules import SCHEDULES, Constant, Cosine, Cyclical, Drop, Polynomial, Schedule, explores
from pseudocoresets.kernels.sgd import SGD
from pseudocoresets.kernels.sghmc import SGHMC

__all__ = [
    "HMC",
    "KERNELS",
    "MALA",
    "NUTS",
    "OPTIMISERS",
    "SCHEDULES",
    "SGD",
    "SGHMC",
    "Adam",
    "AdjustedKernel",
    "AnyKernel",
    "Chain",
    "Constant",
    "Cosine",
    "Cyclical",
    "Drop",
    "DualAveraging",
    "Info",
    "Kernel",
    "Langevin",
    "Polynomial",
    "PreconditionedSGHMC",
    "Run",
    "RunsItself",
    "Schedule",
    "WarmUp",
    "advance",
    "build_kernel",
    "explores",
    "is_adjusted",
    "run_chain",
    "sample_chains",
    "speeds_at",
    "speeds_one_by_one",
    "transitions",
    "warm_up",
    "with_step_size",
]

KERNELS: Registry[Callable[..., AnyKernel]] = Registry(
    "sampler",
    {"langevin": Langevin, "mala": MALA, "sghmc": SGHMC, "psghmc": PreconditionedSGHMC, "hmc": HMC, "nuts": NUTS},
    group="pseudocoresets.kernels",
)
"""Every Markov kernel by name; each takes ``step_size``."""
OPTIMISERS: Registry[Callable[..., AnyKernel]] = Registry("optimiser", {"sgd": SGD, "adam": Adam})
"""Transitions to a mode, by name; each takes ``step_size``."""


def build_kernel(kernel: str | AnyKernel, step_size: float) -> AnyKernel:
    """The kernel that is named, ``"hmc"`` or ``"hmc:leapfrog_steps=5"``, with this step size; an object as it is."""
    return build_named(KERNELS, kernel, step_size=step_size) if isinstance(kernel, str) else kernel
