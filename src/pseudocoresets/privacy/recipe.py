"""How a coreset was made, read from its own record, so that the same can be done with other data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from pseudocoresets.backends import Backend
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.settings import build_settings
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.methods import GradientMethod, build_gradient_method
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.methods.selection import SELECTIONS, selection_of_start
from pseudocoresets.models.networks import Network
from pseudocoresets.sources.experts import Experts

NOISE = "noise_multiplier"
"""The option that a private form of a method has, and its ordinary one has not."""


class Way(Protocol):
    """From data to a coreset of them."""

    @property
    def needs_experts(self) -> bool:
        """Whether it draws from networks that were trained on the data."""
        ...

    def make(
        self,
        data: Dataset,
        experts: Experts | None,
        network: Network,
        device: torch.device,
        backend: Backend,
        checkpoints: Path | None = None,
    ) -> Coreset:
        """The coreset of ``data``; a process that was killed goes on from ``checkpoints``, a folder."""
        ...


@dataclass(frozen=True)
class OwnWay:
    """A function of the user's."""

    function: Callable[[Dataset], Coreset]
    needs_experts: bool = False

    def make(
        self,
        data: Dataset,
        experts: Experts | None,
        network: Network,
        device: torch.device,
        backend: Backend,
        checkpoints: Path | None = None,
    ) -> Coreset:
        return self.function(data)


@dataclass(frozen=True)
class Step:
    """One construction: a method with its options and settings, or a selection of real images."""

    method: str
    options: Mapping[str, Any]
    settings: ConstructionSettings

    @property
    def is_selection(self) -> bool:
        return self.method in SELECTIONS

    @property
    def needs_experts(self) -> bool:
        return not self.is_selection and self.gradient().needs_source

    @property
    def is_private(self) -> bool:
        """Whether it reads the data in one noisy release."""
        return NOISE in self.options

    def gradient(self) -> GradientMethod:
        return PrivateMatching(**self.options) if self.is_private else build_gradient_method(self.method, self.options)


@dataclass(frozen=True)
class Recipe:
    """The constructions that led to a coreset, in their order; each starts from the coreset of the one before."""

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, coreset: Coreset) -> Recipe:
        """As the file has it; an error if it does not say everything."""
        return cls(_steps(coreset.method, coreset.configuration))

    @property
    def start(self) -> ConstructionSettings:
        return self.steps[0].settings

    @property
    def needs_experts(self) -> bool:
        """Whether the selection of the first images or a method draws from experts."""
        selection = selection_of_start(self.start.initialisation)
        return selection.needs_experts or any(step.needs_experts for step in self.steps)

    def make(
        self,
        data: Dataset,
        experts: Experts | None,
        network: Network,
        device: torch.device,
        backend: Backend,
        checkpoints: Path | None = None,
    ) -> Coreset:
        made: Coreset | None = None
        for number, step in enumerate(self.steps):
            if step.is_selection:
                made = real_coreset(data, step.settings, network.spec, step.method, experts=experts, device=device)
                continue
            made = run_construction(
                data,
                experts,
                step.method,
                step.gradient(),
                step.settings,
                network=network,
                checkpoint=None if checkpoints is None else checkpoints / f"{number}.checkpoint",
                initial=made,
                device=device,
                backend=backend,
            ).coreset
        assert made is not None
        return made


def _steps(method: str, configuration: Mapping[str, Any]) -> tuple[Step, ...]:
    settings, options, initial = (configuration.get(key) for key in ("settings", "method", "initial"))
    whole = isinstance(settings, Mapping) and (method in SELECTIONS or isinstance(options, Mapping))
    if not whole or not (initial is None or isinstance(initial, Mapping)):
        raise InputError(
            "The file does not say all of how the coreset was made, so that the same cannot be done with other data; "
            "make it again with this version, or audit it without shadows."
        )
    assert isinstance(settings, Mapping)
    before = () if initial is None else _steps(str(initial.get("method")), initial.get("configuration") or {})
    own = Step(method, dict(options or {}), build_settings(ConstructionSettings, settings, "The recorded construction"))
    return (*before, own)
