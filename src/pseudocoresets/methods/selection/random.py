"""Random real images, the same number of each class."""

from __future__ import annotations

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.dataset import Split


def require_class_size(train: Split, ipc: int) -> Tensor:
    """The size of each class, of which none may be smaller than ``ipc``."""
    counts = torch.bincount(train.labels)
    if not 1 <= ipc <= int(counts.min()):
        raise InputError(
            f"Images per class must lie between 1 and {int(counts.min())}, the size of the smallest class; got {ipc}."
        )
    return counts


def random_per_class(train: Split, ipc: int, seed: int) -> Tensor:
    """Indices of ``ipc`` random images of each class, class by class."""
    counts = require_class_size(train, ipc)
    generator = generator_for(seed, "random images")
    chosen = []
    for label in range(len(counts)):
        members = (train.labels == label).nonzero().squeeze(1)
        chosen.append(members[torch.randperm(len(members), generator=generator)[:ipc]])
    return torch.cat(chosen)
