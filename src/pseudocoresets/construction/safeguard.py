"""Never worse than doing nothing clever: what a method found is measured before it is returned.

Its divergence KL(pi || pi_u) is estimated without a chain (``Yardstick``), beside that of simple coresets of the same
size: a uniform subsample and the Hilbert coresets of Frank-Wolfe and GIGA. A gradient method's points are also tried on
the way back to where they started, at 1/2, 1/4, 1/8 and 0 of the way. Searches over many synthetic points end in worse
places at times, and more points should not do harm: while nothing is within a thousandth of a nat, starts of four times
as many points as parameters and of just as many are tried where more are allowed, and Hilbert coresets of half as
many points as are allowed, a quarter and so on. The nearest is returned, and the coreset says which it is. Where as
many points are allowed as there are data, these are returned and nothing is searched for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pseudocoresets._io.documents import finite
from pseudocoresets.core.errors import DivergenceError
from pseudocoresets.core.points import Points
from pseudocoresets.core.targets import all_points
from pseudocoresets.methods import FrankWolfe, Giga, Problem, Uniform, starting_points
from pseudocoresets.methods.selection.hilbert import hilbert_coreset
from pseudocoresets.methods.solver import smooth_model, yardstick_of
from pseudocoresets.methods.starts import START_ENOUGH
from pseudocoresets.sources.yardstick import Yardstick

OWN, START, EVERYTHING = "own", "start", "all data"
FEWER = (4, 1)
"""Points per parameter of smaller coresets that are tried."""
WAY_BACK = (0.5, 0.25, 0.125)
CLEARLY = 0.98
"""The share of a divergence that is less by more than the noise of the measurement."""
CHECKED = "checked"
"""Where a coreset's configuration says what was measured."""


@dataclass
class Safeguard:
    """The nearest of several coresets of at most ``size`` points, and the divergences of all of them."""

    problem: Problem
    size: int
    seed: int
    divergences: dict[str, float] = field(default_factory=dict)
    _best: tuple[str, Points] | None = None

    def offer(self, name: str, points: Points) -> None:
        """Measure a candidate; one that is not clearly nearer than those before it is forgotten."""
        self.divergences[name] = self._yardstick.divergence(points)
        if self._best is None or self.divergences[name] < CLEARLY * self.divergences[self._best[0]]:
            self._best = name, points

    @property
    def all_data(self) -> bool:
        """Whether as many points are allowed as there are data, which nothing else can be nearer than."""
        return self.size >= self.problem.energy.data_size

    @cached_property
    def _yardstick(self) -> Yardstick:
        return yardstick_of(self.problem)

    def offer_way_back(self, start: Points, end: Points) -> None:
        """Points between ``start`` and ``end``, and ``start`` itself."""
        self.offer(START, start)
        for share in WAY_BACK:
            self.offer(f"{share:g} of the way", between(start, end, share))

    def offer_fewer(self) -> None:
        """Starts of :data:`FEWER` points per parameter where more are allowed, while nothing is near enough."""
        for per_parameter in FEWER:
            fewer = per_parameter * smooth_model(self.problem).size
            if fewer < self.size and not self._near_enough:
                with contextlib.suppress(DivergenceError):
                    found = starting_points(self.problem, fewer, self.seed, learn_weights=True, sharpen=True)
                    self.offer(f"{fewer} points", found.start)

    def offer_simple(self) -> None:
        """Coresets that need no method; while nothing is near enough, those of fewer points, too."""
        for name, points in simple_coresets(self.problem, self.size, self.seed):
            self.offer(name, points)
        fewer = self.size // 2
        while fewer and not self._near_enough:
            for name, points in _hilbert_coresets(self.problem, fewer, self.seed):
                self.offer(f"{name} of {fewer}", points)
            fewer //= 2

    @property
    def _near_enough(self) -> bool:
        return self._best is not None and self.divergences[self._best[0]] <= START_ENOUGH

    @property
    def best(self) -> Points:
        if self._best is None:
            raise DivergenceError("No coreset was found; use a proper prior or check the data for extreme values.")
        return self._best[1]

    def record(self) -> dict[str, Any]:
        """Which one is the nearest, and what was measured, in nats."""
        returned = None if self._best is None else self._best[0]
        return {"returned": returned, "kl": finite(self.divergences)}


def simple_coresets(problem: Problem, size: int, seed: int) -> Iterator[tuple[str, Points]]:
    """What needs no method, by name."""
    if size >= problem.energy.data_size:
        yield EVERYTHING, all_points(problem.full_data())
        return
    yield Uniform.name, Uniform().solve(problem, size, seed)
    yield from _hilbert_coresets(problem, size, seed)


def _hilbert_coresets(problem: Problem, size: int, seed: int) -> Iterator[tuple[str, Points]]:
    for solver in (FrankWolfe(), Giga()):
        with contextlib.suppress(DivergenceError):
            yield solver.name, hilbert_coreset(problem, size, seed, solver)


def between(start: Points, end: Points, share: float) -> Points:
    """(1 - share) start + share end, in points, targets and weights alike."""
    x, y, weights = (
        first + share * (second - first)
        for first, second in ((start.x, end.x), (start.y, end.y), (start.weights, end.weights))
    )
    return Points(x, y, weights)
