"""Whom the attacks ask about: some training images and as many held-out ones, with their true labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.data.transforms import InputTransform
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.privacy.membership import sureness

Answers: TypeAlias = Mapping[str, Tensor]
"""By the name of what was asked, how sure its predictions are of each questioned image."""


@dataclass(frozen=True)
class Questions:
    """Positions in the pool, which are the training images and after them the held-out ones."""

    pool: Dataset
    """All of them as training data."""
    chosen: Tensor
    members: Tensor
    """Which of the chosen are training images of the coreset."""

    @classmethod
    def of(cls, data: Dataset, transform: InputTransform, images: int, seed: int) -> Questions:
        """At most ``images`` of each kind, as many of one as of the other, at random."""
        generator = generator_for(seed, "questioned images")
        count, inside = min(images, len(data.train), len(data.test)), len(data.train)
        members = torch.randperm(inside, generator=generator)[:count]
        others = inside + torch.randperm(len(data.test), generator=generator)[:count]
        both = Split(torch.cat([data.train.images, data.test.images]), torch.cat([data.train.labels, data.test.labels]))
        pool = replace(data, train=both, transform=transform)
        return cls(pool, torch.cat([members, others]), torch.arange(2 * count) < count)

    @cached_property
    def asked(self) -> Split:
        return self.pool.train.subset(self.chosen)

    @property
    def held_out(self) -> Tensor:
        """Positions among the held-out images alone."""
        chosen = self.chosen[~self.members]
        return chosen - (len(self.pool.train) - len(self.pool.test))

    def probabilities(self, predictions: PosteriorSamples) -> Tensor:
        """Those of the average of all samples (questions, classes)."""
        return predictions.predict(self.asked.images).flatten(0, 1).mean(0)

    def answers(self, predictions: Mapping[str, PosteriorSamples]) -> Answers:
        return {name: sureness(self.probabilities(each), self.asked.labels) for name, each in predictions.items()}
