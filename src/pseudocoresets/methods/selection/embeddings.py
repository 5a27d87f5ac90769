"""Selections by where a trained network puts the images: herding and k-center.

The embedding z_i of a training image is the input of the last linear layer of an expert at its last epoch, the expert
being number ``seed`` modulo their number. Both choose greedily within each class; ties go to the lower index.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.core.devices import HOST
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.methods.problem import BATCH_SIZE, RealData
from pseudocoresets.methods.selection.selection import Selection, members_by_class
from pseudocoresets.sources.experts import Experts


class EmbeddingSelection(Selection):
    """Chooses among the embeddings of each class."""

    needs_experts: ClassVar[bool] = True

    def select(
        self, data: Dataset, ipc: int, seed: int, experts: Experts | None = None, device: torch.device = HOST
    ) -> Tensor:
        experts = self.trained(experts, data)
        theta = experts.snapshot(seed % len(experts), -1).to(device)
        images = RealData.of(data, device)

        def embedded(members: Tensor) -> Tensor:
            batches = members.to(device).split(BATCH_SIZE)
            return torch.cat([experts.network.features(theta, images.rows(batch)[0]) for batch in batches])

        classes = [members for members in members_by_class(data.train, ipc) if len(members)]
        with torch.no_grad():
            return torch.cat(
                [members[self.choose(embedded(members).double(), min(ipc, len(members))).cpu()] for members in classes]
            )

    @abstractmethod
    def choose(self, embeddings: Tensor, count: int) -> Tensor:
        """Indices of ``count`` of the rows of ``embeddings`` (n, features), in the order in which they are chosen."""


class Herding(EmbeddingSelection):
    """Keeps the mean of the class (Welling 2009; Rebuffi et al. 2017).

    With mu the mean of all embeddings of the class, the t-th image makes the mean of the chosen ones as near to mu as
    one image can:

        i_t = argmin over i not chosen of || mu - (z_i + sum_{s<t} z_{i_s}) / t ||.
    """

    name: ClassVar[str] = "herding"

    def choose(self, embeddings: Tensor, count: int) -> Tensor:
        mean = embeddings.mean(0)
        missing = torch.zeros_like(mean)  # t mu - sum_{s<t} z_{i_s}: what the t-th embedding would ideally be
        free = torch.ones(len(embeddings), dtype=torch.bool, device=embeddings.device)
        chosen = []
        for _ in range(count):
            missing = missing + mean
            index = _squared_distances(embeddings, missing).where(free, torch.inf).argmin()
            missing = missing - embeddings[index]
            free[index] = False
            chosen.append(index)
        return torch.stack(chosen)


class KCenter(EmbeddingSelection):
    """Leaves no image of the class far from a chosen one (Gonzalez 1985; Sener and Savarese 2018).

    The first image is the one nearest to the mean of the class, each further one the farthest from those before:

        i_t = argmax_i min_{s<t} || z_i - z_{i_s} ||.

    The largest distance of an image to its nearest chosen one is at most twice the least that is possible.
    """

    name: ClassVar[str] = "k-center"

    def choose(self, embeddings: Tensor, count: int) -> Tensor:
        chosen = [_squared_distances(embeddings, embeddings.mean(0)).argmin()]
        nearest = torch.full_like(embeddings[:, 0], torch.inf)
        for _ in range(1, count):
            nearest = torch.minimum(nearest, _squared_distances(embeddings, embeddings[chosen[-1]]))
            nearest[chosen[-1]] = -1.0  # below the distance of any other, also of an equal image
            chosen.append(nearest.argmax())
        return torch.stack(chosen)


def _squared_distances(embeddings: Tensor, point: Tensor) -> Tensor:
    return (embeddings - point).square().sum(1)
