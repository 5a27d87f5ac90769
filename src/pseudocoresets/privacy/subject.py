"""What is audited, and the three ways from data to predictions that are attacked in the same manner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pseudocoresets.backends import Backend
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.dp import Budget
from pseudocoresets.evaluation.report import control_coreset, control_settings
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.models.networks import Network
from pseudocoresets.privacy.questions import Answers, Questions
from pseudocoresets.privacy.recipe import Way
from pseudocoresets.privacy.report import ALL_DATA, CORESET, RANDOM
from pseudocoresets.sources.experts import Experts, ExpertSettings
from pseudocoresets.sources.experts.train import train


@dataclass(frozen=True)
class Training:
    """How networks are trained on all data, and how many of them a construction draws from."""

    settings: ExpertSettings
    count: int
    budget: Budget | None = None
    """Of those that a construction draws from; a network that stands for training on all data has none."""


@dataclass(frozen=True)
class Subject:
    """A coreset, samples of its posterior, and all that is needed to do the same with other data."""

    coreset: Coreset
    samples: PosteriorSamples
    network: Network
    training: Training
    device: torch.device
    backend: Backend

    def control(self, data: Dataset) -> Coreset:
        """As many random real images."""
        return control_coreset(control_settings(self.coreset), data, self.network.spec, 0)

    def trained(self, data: Dataset) -> Experts:
        """One network, trained without any regard to privacy."""
        return self._experts(data, 1, None)

    def _experts(self, data: Dataset, count: int, budget: Budget | None) -> Experts:
        settings = self.training.settings
        return train(data, self.network, count, settings, device=self.device, backend=self.backend, privacy=budget)

    def predictions(self, samples: PosteriorSamples, control: Coreset, experts: Experts) -> dict[str, PosteriorSamples]:
        """Of a coreset, of its control and of the first expert, all that was made from one set of data."""
        assert self.samples.again is not None
        trained = experts.snapshot(0, -1).to(self.device)[None, None]
        return {
            CORESET: samples,
            RANDOM: self.samples.again(control),
            ALL_DATA: replace(self.samples, parameters=trained, protocol="point", coreset=None, again=None),
        }

    def shadow(self, way: Way, questions: Questions, data: Dataset, checkpoints: Path | None) -> Answers:
        """The answers of all three ways when they are given other data."""
        assert self.samples.again is not None
        training = self.training
        drawn = self._experts(data, training.count, training.budget) if way.needs_experts else None
        experts = self.trained(data) if drawn is None or drawn.guarantee is not None else drawn
        made = way.make(data, drawn, self.network, self.device, self.backend, checkpoints)
        return questions.answers(self.predictions(self.samples.again(made), self.control(data), experts))
