"""Methods that find their points directly, without the construction loop.

A solver reads of a ``Problem`` its model (which must be smooth), its full data and, where it needs a source of
posterior samples, the Gaussian q nearest to the full posterior that the source knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, runtime_checkable

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import Points
from pseudocoresets.methods.method import ConstructionMethod
from pseudocoresets.methods.problem import Problem
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.sources.gaussian_fit import GaussianFit
from pseudocoresets.sources.yardstick import Yardstick


class Solver(ConstructionMethod, ABC):
    """A way to find the points of a coreset; frozen dataclasses derive from it."""

    synthetic: ClassVar[bool] = False

    @abstractmethod
    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        """At most ``size`` weighted points whose posterior stands for the full one."""


@runtime_checkable
class KnowsGaussian(Protocol):
    """A source that knows the Gaussian q nearest to the full posterior."""

    @property
    def gaussian(self) -> Gaussian: ...


def smooth_model(problem: Problem) -> SmoothModel:
    """The problem's model, of which a solver needs averages over Gaussians."""
    model = problem.energy.model
    if not isinstance(model, SmoothModel):
        raise InputError(
            "This method needs a model with expected_log_likelihood, such as FunctionModel; got "
            f"{type(model).__name__}."
        )
    return model


def nearest_gaussian(problem: Problem) -> Gaussian:
    """q, as the problem's source knows it."""
    if not isinstance(problem.source, KnowsGaussian):
        raise InputError("This method needs a source that knows the nearest Gaussian, such as GaussianFit.")
    return problem.source.gaussian


def yardstick_of(problem: Problem) -> Yardstick:
    """What measures coresets of the problem; kept by a source that fits the full posterior's Gaussian itself."""
    source, model, data = problem.source, smooth_model(problem), problem.full_data()
    if isinstance(source, GaussianFit):
        return source.yardstick
    if isinstance(source, KnowsGaussian):
        return Yardstick(model, data, source.gaussian)
    return GaussianFit(model, data).yardstick


def check_size(data_size: int, size: int) -> None:
    if not 1 <= size <= data_size:
        raise InputError(f"A coreset of {data_size} points must have between 1 and {data_size} of them; got {size}.")
