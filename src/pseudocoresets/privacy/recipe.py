"""How a coreset was made, read from its own record, so that the same can be done with other data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from pseudocoresets._io.files import make_folder
from pseudocoresets.backends import Backend
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.settings import build_settings
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.dp import Guarantee
from pseudocoresets.methods import GradientMethod, build_gradient_method
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.methods.selection import SELECTIONS, selection_of_start
from pseudocoresets.models.networks import Network
from pseudocoresets.sources.experts import Experts

NOISE = "noise_multiplier"
"""The option that a private form of a method has, and its ordinary one has not."""
NOT_ALL = (
    "The file does not say all of how the coreset was made, so that the same cannot be done with other data; make it "
    "again with this version, or audit it without shadows."
)


@dataclass(frozen=True)
class Tools:
    """What coresets are made with, whatever they are made from."""

    network: Network
    device: torch.device
    backend: Backend


class Way(Protocol):
    """From data to a coreset of them."""

    @property
    def needs_experts(self) -> bool:
        """Whether it draws from networks that were trained on the data."""
        ...

    def make(self, data: Dataset, experts: Experts | None, tools: Tools, checkpoints: Path | None = None) -> Coreset:
        """The coreset of ``data``; a process that was killed goes on from ``checkpoints``, a folder."""
        ...


@dataclass(frozen=True)
class OwnWay:
    """A function of the user's."""

    function: Callable[[Dataset], Coreset]
    needs_experts: bool = False

    def make(self, data: Dataset, experts: Experts | None, tools: Tools, checkpoints: Path | None = None) -> Coreset:
        return self.function(data)


@dataclass(frozen=True)
class Step:
    """One construction: a method with its options and settings, or a selection of real images."""

    method: str
    options: Mapping[str, Any]
    settings: ConstructionSettings
    made_from: Recipe | None = None
    """How the images were made that stood for the data, where a coreset's did."""

    @property
    def is_selection(self) -> bool:
        return self.method in SELECTIONS

    @property
    def needs_experts(self) -> bool:
        return not self.is_selection and self.gradient().needs_source

    @property
    def is_private(self) -> bool:
        """Whether it reads the data in one noisy release, or images that were made so."""
        return NOISE in self.options or (self.made_from is not None and self.made_from.is_private)

    def gradient(self) -> GradientMethod:
        if NOISE in self.options:
            return PrivateMatching(**self.options)
        return build_gradient_method(self.method, self.options)


@dataclass(frozen=True)
class Recipe:
    """The constructions that led to a coreset, in their order; each starts from the coreset of the one before."""

    steps: tuple[Step, ...]
    guarantee: Guarantee | None = None
    """What was promised of the coreset; it is not claimed of what is made again."""

    @classmethod
    def of(cls, coreset: Coreset) -> Recipe:
        """As the file has it; an error if it does not say everything."""
        return cls(_steps(coreset.method, coreset.configuration, coreset.guarantee), coreset.guarantee)

    @property
    def start(self) -> ConstructionSettings:
        return self.steps[0].settings

    @property
    def needs_experts(self) -> bool:
        """Whether the selection of the first images, a method, or what made its data draws from experts."""
        before = [step.made_from for step in self.steps if step.made_from is not None]
        selection = selection_of_start(self.start.initialisation)
        drawing = selection.needs_experts or any(step.needs_experts for step in self.steps)
        return drawing or any(recipe.needs_experts for recipe in before)

    @property
    def is_private(self) -> bool:
        """Whether all that it reads of the data is noisy."""
        return all(step.is_private for step in self.steps)

    def make(self, data: Dataset, experts: Experts | None, tools: Tools, checkpoints: Path | None = None) -> Coreset:
        made: Coreset | None = None
        for number, step in enumerate(self.steps):
            place = None if checkpoints is None else make_folder(checkpoints / str(number))
            used = data
            if step.made_from is not None:
                images = step.made_from.make(data, experts, tools, place)
                used = replace(images, guarantee=self._for_as_many(data)).as_data()
            if step.is_selection:
                made = real_coreset(
                    used, step.settings, tools.network.spec, step.method, experts=experts, device=tools.device
                )
                continue
            made = run_construction(
                used,
                experts if step.made_from is None else None,
                step.method,
                step.gradient(),
                step.settings,
                network=tools.network,
                checkpoint=None if place is None else place / "construction.checkpoint",
                initial=_promising(made, used),
                device=tools.device,
                backend=tools.backend,
            ).coreset
        assert made is not None
        return replace(made, guarantee=None)

    def _for_as_many(self, data: Dataset) -> Guarantee | None:
        """The guarantee as it says for how many data a coreset stands, which is all that is asked of it here."""
        return None if self.guarantee is None else replace(self.guarantee, examples=len(data.train))


def _promising(initial: Coreset | None, data: Dataset) -> Coreset | None:
    """A start that goes with private data."""
    return None if initial is None else replace(initial, guarantee=data.guarantee)


def _steps(method: str, configuration: Mapping[str, Any], guarantee: Guarantee | None) -> tuple[Step, ...]:
    settings, options, initial, data = (configuration.get(key) for key in ("settings", "method", "initial", "data"))
    whole = isinstance(settings, Mapping) and (method in SELECTIONS or isinstance(options, Mapping))
    if not whole or not all(each is None or isinstance(each, Mapping) for each in (initial, data)):
        raise InputError(NOT_ALL)
    assert isinstance(settings, Mapping)
    before, source = (() if each is None else _recorded(each, guarantee) for each in (initial, data))
    chosen = build_settings(ConstructionSettings, settings, "The recorded construction")
    own = Step(method, dict(options or {}), chosen, Recipe(source, guarantee) if source else None)
    if own.made_from is not None and own.needs_experts:
        raise InputError(NOT_ALL)
    return (*before, own)


def _recorded(document: Mapping[str, Any], guarantee: Guarantee | None) -> tuple[Step, ...]:
    return _steps(str(document.get("method")), document.get("configuration") or {}, guarantee)
