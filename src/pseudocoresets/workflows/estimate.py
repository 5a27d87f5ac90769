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
FASTEST = {"cpu": 1e13, "cuda": 1e16}
"""Operations per second that no machine, and no single GPU, reaches."""
LONGEST = 365.25 * 86400.0
"""Seconds; nobody waits for more than a year."""
OPERATIONS = 6
"""Of a network's forward and backward, for each parameter and datum, at the least."""


def require_feasible(plan: Plan, data: Dataset, experts_folder: str | Path, device: torch.device) -> None:
    """Refuse a plan that cannot fit in memory, on the disk or in a year, by what it takes at the very least.

    Memory: the parameters of every chain, once for their places, once for their gradients and once for each sample.
    Disk: experts x (epochs + 1) x parameters. Time: 6 operations for each parameter, datum and step.
    """
    size = build_network(plan.network, data.shape, len(data.classes)).size
    sampling, experts = plan.sampling, plan.experts
    if device.type == "cpu":
        held = NUMBER_BYTES * sampling.chains * size * (2 + sampling.samples)
        require_memory(held, f"{sampling.chains:,} chains of {size:,} parameters", "ask for fewer --chains")
    points = plan.construction.ipc * len(data.classes)
    seen = float(points) * (sampling.chains * sampling.steps + plan.construction.iterations)
    if plan.needs_experts():
        _require_epochs(plan)
        _require_disk(size, plan.expert_count, experts.epochs, Path(experts_folder))
        seen += float(plan.expert_count) * experts.epochs * len(data.train)
    _require_time(size * seen, device)


def require_feasible_experts(
    network: str, count: int, epochs: int, data: Dataset, folder: Path, device: torch.device
) -> None:
    """The same for experts alone."""
    size = build_network(network, data.shape, len(data.classes)).size
    _require_disk(size, count, epochs, folder)
    _require_time(float(size) * count * epochs * len(data.train), device)


def _require_epochs(plan: Plan) -> None:
    """Methods that match so many epochs of experts need experts of as many."""
    for stage in plan.stages:
        wanted = stage.gradient_method().options().get("expert_epochs", 0) if stage.learns else 0
        if isinstance(wanted, int) and wanted > plan.experts.epochs:
            raise InputError(
                f"The experts are to have {plan.experts.epochs} epochs, fewer than expert_epochs = {wanted} of the "
                f"method '{stage.method}'; raise --epochs or lower it by --set expert_epochs=N."
            )


def _require_time(passes: float, device: torch.device) -> None:
    """``passes``: how often a parameter meets a datum."""
    years = OPERATIONS * passes / FASTEST.get(device.type, FASTEST["cuda"]) / LONGEST
    if years > 1:
        raise InputError(
            f"This would take more than {years:,.0f} years on any such device; ask for fewer steps, chains, iterations "
            "or experts."
        )


def _require_disk(size: int, count: int, epochs: int, folder: Path) -> None:
    """What is in the store already counts as room."""
    wanted = NUMBER_BYTES * size * count * (epochs + 1)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    stored = sum(path.stat().st_size for path in folder.glob("expert-*.safetensors"))
    free = shutil.disk_usage(existing).free + stored
    if wanted > free:
        raise InputError(
            f"{count:,} experts take {wanted / 2**20:,.1f} MiB, and '{existing}' has room for {free / 2**20:,.1f} MiB; "
            "ask for fewer, of fewer epochs or of a smaller network, or name another place with --experts."
        )
