"""Random real images, the same number of each class."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.devices import HOST
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.methods.selection.selection import Selection, members_by_class
from pseudocoresets.sources.experts import Experts


class Random(Selection):
    """Each image of a class with the same probability: the control that every table carries."""

    name: ClassVar[str] = "random"

    def select(
        self, data: Dataset, ipc: int, seed: int, experts: Experts | None = None, device: torch.device = HOST
    ) -> Tensor:
        return random_per_class(data.train, ipc, seed)


def random_per_class(train: Split, ipc: int, seed: int) -> Tensor:
    """Indices of ``ipc`` random images of each class, or of all where a class has fewer, class by class."""
    generator = generator_for(seed, "random images")
    chosen = [
        members[torch.randperm(len(members), generator=generator)[:ipc]] for members in members_by_class(train, ipc)
    ]
    return torch.cat(chosen)
