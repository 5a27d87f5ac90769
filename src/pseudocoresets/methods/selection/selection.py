"""What a selection of real images is, and what all have in common."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.devices import HOST
from pseudocoresets.core.errors import InputError
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.sources.experts import Experts, require_experts_for


class Selection(ABC):
    """Chooses real images: ``ipc`` of each class, or all where a class has fewer, class by class."""

    name: ClassVar[str] = ""
    needs_experts: ClassVar[bool] = False
    """Whether it asks experts about the images."""

    @abstractmethod
    def select(
        self, data: Dataset, ipc: int, seed: int, experts: Experts | None = None, device: torch.device = HOST
    ) -> Tensor:
        """Indices of the chosen training images, the same for the same arguments.

        Args:
            data: The full data.
            ipc: Images per class.
            seed: Of what is drawn.
            experts: Networks trained on ``data``; without them, a selection that needs some raises an ``InputError``.
            device: Where to compute.
        """

    def trained(self, experts: Experts | None, data: Dataset) -> Experts:
        """The experts, once it is sure that they are there and know these data."""
        if experts is None:
            raise InputError(
                f"The selection '{self.name}' needs experts; train some with train_experts or 'bpc experts', and give "
                "them to construct or name their folder with --experts."
            )
        require_experts_for(experts, data)
        return experts


def require_class_size(train: Split, ipc: int) -> Tensor:
    """The size of each class; ``ipc`` must be at least 1."""
    if ipc < 1:
        raise InputError(f"Images per class must be at least 1; got {ipc}.")
    return torch.bincount(train.labels)


def members_by_class(train: Split, ipc: int) -> list[Tensor]:
    """Indices of each class's images, ascending, with a warning where a class has fewer than ``ipc``."""
    counts = require_class_size(train, ipc)
    small = int((counts < ipc).sum())
    if small:
        warnings.warn(
            f"{small} of {len(counts)} classes have fewer than {ipc} images, the smallest {int(counts.min())}; "
            "all of theirs are taken.",
            stacklevel=3,
        )
    return [(train.labels == label).nonzero().squeeze(1) for label in range(len(counts))]
