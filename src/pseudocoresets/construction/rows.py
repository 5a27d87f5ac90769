"""Coresets of rows, for a model that is no network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import Any

import torch

from pseudocoresets import presets
from pseudocoresets.backends import Backend
from pseudocoresets.construction.checkpoint import CHECKPOINT_SECONDS
from pseudocoresets.construction.loop import learn
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import renamed
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.core.progress import Progress
from pseudocoresets.core.settings import build_settings
from pseudocoresets.core.source import PosteriorSource
from pseudocoresets.coreset import Coreset
from pseudocoresets.methods import GradientMethod, Method, Problem, Solver, build_method, row_problem, starting_points
from pseudocoresets.methods.starts import parameterised
from pseudocoresets.models.expectation import SmoothModel, check_data
from pseudocoresets.presets import Preset

ROWS = "rows"
"""What data that are rows are called where nobody names them, and in presets."""


def construct_rows(
    data: FullData,
    model: SmoothModel,
    method: str | Method = "cd",
    size: int = 20,
    *,
    source: PosteriorSource | None = None,
    name: str = ROWS,
    preset: str | os.PathLike[str] | Preset = "quick",
    method_options: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    initial: Coreset | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Coreset:
    """A coreset of ``size`` rows whose posterior under ``model`` stands for that of all ``data``.

    Args:
        source: Samples of the full posterior; draws of the Gaussian nearest to it where none is given.
        preset: Where options and settings that are not given come from; its data set is called ``rows``.
        method_options: Of a method that is named.
        settings: Those of ``ConstructionSettings``.
    """
    check_data(model, data)
    own = presets.preset(preset, ROWS, 1)
    built = method
    if isinstance(built, str):
        built = build_method(built, {**own.method_options(built), **(method_options or {})})
    called = built.name or type(built).__name__
    chosen = build_settings(ConstructionSettings, {**own.construction_for(called), **settings}, "The construction")
    task = RowTask(data, model, size, source, name)
    if isinstance(built, Solver):
        recorded: dict[str, Any] = {"method": asdict(built)} if is_dataclass(built) else {}
        return task.coreset(built.solve(task.about, size, chosen.seed), called, chosen.seed, recorded)
    made = learn(
        task,
        called,
        built,
        chosen,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        initial=initial,
        device="cpu",
        progress=progress,
    )
    made.discard_checkpoint()
    return made.coreset


@dataclass(frozen=True)
class RowTask:
    """Rows of a table, a smooth model, and samples of their posterior: draws of the nearest Gaussian if not given."""

    data: FullData
    model: SmoothModel
    size: int
    source: PosteriorSource | None = None
    name: str = ROWS

    @cached_property
    def about(self) -> Problem:
        """The problem at temperature one."""
        return row_problem(self.model, self.data, self.source)

    def start(
        self, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any], device: torch.device
    ) -> Coreset:
        """Informative points, moved till the Gaussian that they imply has the moments of the full posterior's."""
        form = starting_points(self.about, self.size, settings.seed, bool(settings.learn_weights))
        return self.coreset(form.start, method, settings.seed, recorded)

    def continued(
        self, initial: Coreset, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any]
    ) -> Coreset:
        if initial.holds_images:
            raise InputError("This coreset holds images; give the data set and the experts that it was made from.")
        return renamed(initial, settings, method, recorded)

    def problem(self, settings: ConstructionSettings, device: torch.device, backend: Backend) -> Problem:
        if settings.temperature != 1.0:
            raise InputError("Rows are learned at temperature one.")
        return self.about

    def parameterisation(
        self, start: Coreset, method: GradientMethod, settings: ConstructionSettings
    ) -> Parameterisation:
        learned = method.learns_weights if settings.learn_weights is None else settings.learn_weights
        return parameterised(self.about, start.points, learned, settings.seed)

    def identity(self) -> str:
        return fingerprint(self.model, *self.data.batches(), self.source)

    def coreset(self, points: Points, method: str, seed: int, recorded: Mapping[str, Any]) -> Coreset:
        """Points with their provenance."""
        return Coreset(
            points.x,
            points.y,
            points.weights,
            len(self.data),
            self.name,
            method,
            seed=seed,
            configuration=recorded,
            indices=points.indices,
        )
