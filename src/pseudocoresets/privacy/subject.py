"""What is audited, and the three ways from data to predictions that are attacked in the same manner."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.dp import Budget
from pseudocoresets.evaluation.report import control_coreset, control_settings
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.privacy.questions import Answers, Questions
from pseudocoresets.privacy.recipe import Tools, Way
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
    training: Training
    tools: Tools

    def control(self, data: Dataset) -> Coreset:
        """As many random real images."""
        return control_coreset(control_settings(self.coreset), data, self.tools.network.spec, 0)

    def trained(self, data: Dataset) -> Experts:
        """One network, trained without any regard to privacy."""
        return self._experts(data, 1, None)

    def _experts(self, data: Dataset, count: int, budget: Budget | None) -> Experts:
        settings, tools = self.training.settings, self.tools
        return train(data, tools.network, count, settings, device=tools.device, backend=tools.backend, privacy=budget)

    def predictions(self, control: Coreset, experts: Experts) -> dict[str, PosteriorSamples]:
        """Of the coreset, of its control and of the first expert, all that was made from one set of data."""
        return {CORESET: self.samples, RANDOM: self._again(control), ALL_DATA: self._by_training(experts)}

    def shadow(
        self, way: Way, questions: Questions, data: Dataset, checkpoints: Path | None, wanted: Collection[str]
    ) -> Answers:
        """The answers of the ways that are wanted when they are given other data."""
        found, training, drawn = {}, self.training, None
        if CORESET in wanted:
            drawn = self._experts(data, training.count, training.budget) if way.needs_experts else None
            found[CORESET] = self._again(way.make(data, drawn, self.tools, checkpoints))
        if RANDOM in wanted:
            found[RANDOM] = self._again(self.control(data))
        if ALL_DATA in wanted:
            experts = drawn if drawn is not None and drawn.guarantee is None else self.trained(data)
            found[ALL_DATA] = self._by_training(experts)
        return questions.answers(found)

    def identities(self, way: Way, questions: Questions) -> dict[str, str]:
        """For each way, what decides a shadow's answers beside its half of the data."""
        pool, settings = questions.pool, self.samples.settings.as_json()
        asked = (pool.train.fingerprint, pool.transform.tensors(), questions.chosen, self.tools.network.fingerprint)
        sampled, training = (self.samples.protocol, settings), self.training
        return {
            CORESET: fingerprint(*asked, *sampled, way, training if way.needs_experts else None),
            RANDOM: fingerprint(*asked, *sampled, control_settings(self.coreset)),
            ALL_DATA: fingerprint(*asked, training.settings, training.count if way.needs_experts else 1),
        }

    def _again(self, coreset: Coreset) -> PosteriorSamples:
        assert self.samples.again is not None
        return self.samples.again(coreset)

    def _by_training(self, experts: Experts) -> PosteriorSamples:
        trained = experts.snapshot(0, -1).to(self.tools.device)[None, None]
        return replace(self.samples, parameters=trained, protocol="point", coreset=None, again=None)
