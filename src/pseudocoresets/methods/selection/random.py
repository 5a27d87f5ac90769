"""Random real images, the same number of each class."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.dataset import Split


def require_class_size(train: Split, ipc: int) -> Tensor:
    """The size of each class; ``ipc`` must be at least 1."""
    if ipc < 1:
        raise InputError(f"Images per class must be at least 1; got {ipc}.")
    return torch.bincount(train.labels)


def random_per_class(train: Split, ipc: int, seed: int) -> Tensor:
    """Indices of ``ipc`` random images of each class, or of all where a class has fewer, class by class."""
    counts = require_class_size(train, ipc)
    small = int((counts < ipc).sum())
    if small:
        warnings.warn(
            f"{small} of {len(counts)} classes have fewer than {ipc} images, the smallest {int(counts.min())}; "
            "all of theirs are taken.",
            stacklevel=2,
        )
    generator = generator_for(seed, "random images")
    chosen = []
    for label in range(len(counts)):
        members = (train.labels == label).nonzero().squeeze(1)
        chosen.append(members[torch.randperm(len(members), generator=generator)[:ipc]])
    return torch.cat(chosen)
