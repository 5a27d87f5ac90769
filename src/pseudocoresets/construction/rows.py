"""Coresets of rows, for a model that is no network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

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
from pseudocoresets.core.source import PosteriorSource
from pseudocoresets.coreset import Coreset
from pseudocoresets.methods import GradientMethod, Method, Problem, Solver, build_method, row_problem, starting_points
from pseudocoresets.methods.starts import parameterised
from pseudocoresets.models.expectation import SmoothModel, check_data

ROW_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "iterations": 600,
        "optimiser": "adam",
        "learning_rate": 0.005,
        "label_learning_rate": 0.005,
        "weight_learning_rate": 0.005,
        "annealing": 1.0,
        "augment": False,
    }
)
"""How rows are learned unless told otherwise: by Adam, whose step size falls to zero, so that the noise of the chains
averages out, and is small from the beginning, because a larger one would lose what the start has found."""

ROW_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "cd": {"expert_epochs": 0, "chains": 256, "steps": 10, "step_size": 0.2, "sigma": 0.0},
        "fkl": {"steps": 20, "step_size": 0.5, "chains": 64, "samples": 4, "sigma": 1.0, "at_once": 256},
        "fkl-hmc": {
            "expert_epochs": 1,
            "chains": 64,
            "steps": 0,
            "burn_in": 2,
            "samples": 4,
            "leapfrog_steps": 4,
            "step_size": 0.4,
            "sigma": 0.0,
            "at_once": 256,
        },
        "rkl": {"steps": 20, "step_size": 0.5, "samples": 256, "sigma": 1.0, "batch_size": 1000, "at_once": 256},
        "psvi": {
            "steps": 20,
            "step_size": 0.5,
            "samples": 256,
            "langevin_steps": 20,
            "batch_size": 1000,
            "at_once": 256,
        },
        "wasserstein": {"chains": 64, "steps": 20, "step_size": 0.5, "step_size_learning_rate": 0.0},
    }
)
"""What methods of the construction loop use for rows unless told otherwise; step sizes are in whitened coordinates."""


def construct_rows(
    data: FullData,
    model: SmoothModel,
    method: str | Method = "cd",
    size: int = 20,
    *,
    source: PosteriorSource | None = None,
    name: str = "rows",
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
        method_options: Of a method that is named; others than those given here are ``ROW_OPTIONS``.
        settings: Those of ``ConstructionSettings``; others than those given here are ``ROW_SETTINGS``.
    """
    check_data(model, data)
    options = {**ROW_OPTIONS.get(method, {}), **(method_options or {})} if isinstance(method, str) else {}
    built = build_method(method, options) if isinstance(method, str) else method
    called = built.name or type(built).__name__
    task, chosen = RowTask(data, model, size, source, name), ConstructionSettings(**{**ROW_SETTINGS, **settings})
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
    name: str = "rows"

    @cached_property
    def about(self) -> Problem:
        """The problem at temperature one."""
        return row_problem(self.model, self.data, self.source)

    def start(self, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any]) -> Coreset:
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
