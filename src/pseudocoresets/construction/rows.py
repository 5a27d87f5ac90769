"""Coresets of rows, for a model that is no network."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import Any

import torch

from pseudocoresets import presets
from pseudocoresets.backends import Backend
from pseudocoresets.construction.loop import Construction, configuration
from pseudocoresets.construction.safeguard import CHECKED, OWN, START, Safeguard
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import renamed
from pseudocoresets.core.devices import HOST
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import FullData, Points, Rows, content_of
from pseudocoresets.core.settings import build_settings
from pseudocoresets.core.source import PosteriorSource
from pseudocoresets.coreset import Coreset
from pseudocoresets.data.large import LargeRows
from pseudocoresets.methods import GradientMethod, Method, Problem, Solver, build_method, row_problem, starting_points
from pseudocoresets.methods.solver import check_size
from pseudocoresets.methods.starts import parameterised
from pseudocoresets.models.expectation import SmoothModel, check_data
from pseudocoresets.presets import Preset

ROWS = "rows"
"""What data that are rows are called where nobody names them, and in presets."""


@dataclass(frozen=True)
class RowTask:
    """Rows of a table, a smooth model, and samples of their posterior: draws of the nearest Gaussian if not given."""

    data: FullData
    model: SmoothModel
    size: int
    source: PosteriorSource | None = None
    name: str = ROWS

    def __post_init__(self) -> None:
        check_data(self.model, self.data)

    def chosen(
        self,
        method: str | Method,
        preset: str | os.PathLike[str] | Preset,
        options: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> tuple[Method, ConstructionSettings]:
        """The method and the settings, with the preset's for rows where others are not given."""
        own = presets.preset(preset, ROWS, 1)
        built = build_method(method, {**own.method_options(method), **options}) if isinstance(method, str) else method
        given = {**own.construction_for(built.called), **settings}
        return built, build_settings(ConstructionSettings, given, "The construction")

    def solved(self, solver: Solver, settings: ConstructionSettings, check: bool = True) -> Coreset:
        """What a solver finds, which needs no construction loop, or a simpler coreset that is nearer."""
        recorded: dict[str, Any] = {"method": asdict(solver)} if is_dataclass(solver) else {}
        name, seed = solver.called, settings.seed
        if not check or solver.is_baseline:
            return self.coreset(solver.solve(self.about, self.size, seed), name, seed, recorded)
        guard = self._safeguard(seed)
        if not guard.all_data:
            with contextlib.suppress(DivergenceError):
                guard.offer(OWN, solver.solve(self.about, self.size, seed))
            if solver.synthetic:
                guard.offer_fewer()
        guard.offer_simple()
        return self.coreset(guard.best, name, seed, {**recorded, CHECKED: guard.record()})

    def guarded(
        self, learn: Callable[[], Construction], method: GradientMethod, settings: ConstructionSettings
    ) -> Coreset:
        """What a gradient method learns, or something on the way there or simpler that is nearer."""
        guard, recorded = self._safeguard(settings.seed), configuration(method, settings)
        if not guard.all_data:
            recorded = self._learned(guard, learn, method, settings) or recorded
            guard.offer_fewer()
        guard.offer_simple()
        return self.coreset(guard.best, method.called, settings.seed, {**recorded, CHECKED: guard.record()})

    def _learned(
        self,
        guard: Safeguard,
        learn: Callable[[], Construction],
        method: GradientMethod,
        settings: ConstructionSettings,
    ) -> dict[str, Any] | None:
        """Offer what a gradient method learns, with its way; its configuration, or None where it diverged."""
        try:
            made = learn()
        except DivergenceError:
            with contextlib.suppress(DivergenceError):
                guard.offer(START, self.start(settings, "", {}, HOST).points)
            return None
        form = self.parameterisation(made.initial, method, settings)
        guard.offer(OWN, made.coreset.points)
        guard.offer_way_back(form.points(form.initial()), made.coreset.points)
        made.discard_checkpoint()
        return dict(made.coreset.configuration)

    def _safeguard(self, seed: int) -> Safeguard:
        check_size(len(self.data), self.size)
        return Safeguard(self.about, self.size, seed)

    @cached_property
    def about(self) -> Problem:
        """The problem at temperature one."""
        return row_problem(self.model, self.data, self.source)

    def start(
        self, settings: ConstructionSettings, method: str, recorded: Mapping[str, Any], device: torch.device
    ) -> Coreset:
        """Informative points, moved till the Gaussian that they imply has the moments of the full posterior's."""
        form = starting_points(self.about, self.size, settings.seed, bool(settings.learn_weights), sharpen=True)
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
        return fingerprint(self.model, *content_of(self.data), self.source)

    @cached_property
    def described(self) -> dict[str, Any]:
        """The model and the names of the features, for whoever fits the coreset elsewhere."""
        own = {name: value for name, value in vars(self.model).items() if not name.startswith("_")}
        plain = {name: value for name, value in own.items() if isinstance(value, int | float | str)}
        model: dict[str, Any] = {"kind": type(self.model).__name__, **plain}
        names = self.data.columns if isinstance(self.data, Rows | LargeRows) else ()
        return {"model": model, "columns": list(names)} if names else {"model": model}

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
            configuration={**recorded, **self.described},
            indices=points.indices,
        )
