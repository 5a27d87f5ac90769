"""What a plan takes at least: memory, disk and time, so that what no machine could do is refused before the work."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from pseudocoresets.core.devices import require_memory
from pseudocoresets.core.errors import InputError
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.models.networks import build_network
from pseudocoresets.workflows.plan import Plan

NUMBER_BYTES = 4
FASTEST = 1e16
"""Operations per second that no single device reaches."""
LONGEST = 10 * 365.25 * 86400.0
"""Seconds; nobody waits for ten years."""


def require_feasible(plan: Plan, data: Dataset, experts_folder: str | Path, device: torch.device) -> None:
    """Refuse a plan that cannot fit in memory, on the disk or in a lifetime, by what it takes at the very least.

    Memory: the parameters of every chain, once for their places, once for their gradients and once for each sample.
    Disk: experts x (epochs + 1) x parameters. Time: an operation for each parameter, chain and step.
    """
    network = build_network(plan.network, data.shape, len(data.classes))
    sampling, experts = plan.sampling, plan.experts
    parameters = NUMBER_BYTES * network.size
    if device.type == "cpu":
        held = sampling.chains * parameters * (2 + sampling.samples)
        require_memory(held, f"{sampling.chains:,} chains of {network.size:,} parameters", "ask for fewer --chains")
    operations = float(network.size) * sampling.chains * sampling.steps
    if plan.needs_experts():
        _require_disk(plan.expert_count * (experts.epochs + 1) * parameters, plan.expert_count, Path(experts_folder))
        operations += float(network.size) * plan.expert_count * experts.epochs * len(data.train)
    operations += float(network.size) * plan.construction.iterations * plan.construction.ipc * len(data.classes)
    if operations / FASTEST > LONGEST:
        raise InputError(
            f"This would take more than {operations / FASTEST / LONGEST * 10:,.0f} years on the fastest device; "
            "ask for fewer steps, chains, iterations or experts."
        )


def _require_disk(wanted: float, count: int, folder: Path) -> None:
    """What is in the store already counts as room."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    stored = sum(path.stat().st_size for path in folder.glob("expert-*.safetensors"))
    free = shutil.disk_usage(existing).free + stored
    if wanted > free:
        raise InputError(
            f"{count:,} experts take {wanted / 2**30:,.1f} GiB, and '{existing}' has room for {free / 2**30:,.1f} GiB; "
            "ask for fewer, of fewer epochs or of a smaller network, or name another place with --experts."
        )
