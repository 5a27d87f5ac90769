"""Selection by what networks forget while they are trained (Toneva et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.devices import HOST
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.methods.problem import RealData
from pseudocoresets.methods.selection.selection import Selection, members_by_class
from pseudocoresets.sources.experts import Experts


class Forgetting(Selection):
    """Keeps the images of each class that experts forget most often; ties go to the lower index.

    With c_e(i) whether an expert is right about training image i after epoch e = 1 .. E, the image's count is

        f(i) = #{ e < E : c_e(i) and not c_{e+1}(i) },

    summed over the experts. What an untrained network (e = 0) has right by chance is not learned, and does not count.
    Nor is an image forgotten that was never learned: the authors, who ask which images can be left out, rank such
    images first, but the few that are kept here would then be the outliers of each class.
    """

    name: ClassVar[str] = "forgetting"
    needs_experts: ClassVar[bool] = True

    def select(
        self, data: Dataset, ipc: int, seed: int, experts: Experts | None = None, device: torch.device = HOST
    ) -> Tensor:
        counts = forgetting_counts(data, self.trained(experts, data), device)
        classes = members_by_class(data.train, ipc)
        return torch.cat([members[counts[members].argsort(descending=True, stable=True)[:ipc]] for members in classes])


def forgetting_counts(data: Dataset, experts: Experts, device: torch.device = HOST) -> Tensor:
    """f(i) of every training image, summed over the experts."""
    images = RealData.of(data, device)

    def right(expert: int, epoch: int) -> Tensor:
        theta = experts.snapshot(expert, epoch).to(device)
        return torch.cat([experts.network.logits(theta, x).argmax(-1) == y for x, y in images.batches()])

    epochs = range(1, experts.epochs + 1)
    with torch.no_grad():
        return sum(
            (count_forgotten(right(expert, epoch) for epoch in epochs) for expert in range(len(experts))),
            start=torch.zeros(len(images), dtype=torch.long),
        )


def count_forgotten(right: Iterable[Tensor]) -> Tensor:
    """f(i) for one expert from c_1, c_2, ..., each (n,) and boolean."""
    history = torch.stack(list(right)).cpu()
    return (history[:-1] & ~history[1:]).sum(0)
