"""Trajectories of training on the full data, which stand for samples of its posterior."""

from pseudocoresets.core.source import Draw
from pseudocoresets.sources.experts.store import (
    Experts,
    ExpertSettings,
    ExpertStore,
    load_experts,
    require_experts_for,
)
from pseudocoresets.sources.experts.train import train_block, train_experts

__all__ = [
    "Draw",
    "ExpertSettings",
    "ExpertStore",
    "Experts",
    "load_experts",
    "require_experts_for",
    "train_block",
    "train_experts",
]
