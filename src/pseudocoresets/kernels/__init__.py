"""Samplers by name: one Markov transition each."""

from __future__ import annotations

from collections.abc import Callable

from pseudocoresets.kernels.chain import Chain, advance, run_chain
from pseudocoresets.kernels.kernel import AnyKernel, Info, Kernel
from pseudocoresets.kernels.langevin import Langevin
from pseudocoresets.registry import Registry

__all__ = ["KERNELS", "AnyKernel", "Chain", "Info", "Kernel", "Langevin", "advance", "run_chain"]

KERNELS: Registry[Callable[..., AnyKernel]] = Registry("sampler", {"langevin": Langevin})
"""Every sampler by name."""
