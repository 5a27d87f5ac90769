"""What every construction is given: a model, its full data and, at a stated price, a Gaussian near its posterior."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.gaussian import Gaussian
from pseudocoresets.core.points import FullData, Points
from pseudocoresets.models.glm import SmoothModel
from pseudocoresets.sources.gaussian_fit import fit_gaussian


@dataclass(frozen=True)
class PosteriorProblem:
    """A model and the full data."""

    model: SmoothModel
    data: FullData

    @property
    def data_size(self) -> int:
        return len(self.data)

    @cached_property
    def _timed_approximation(self) -> tuple[Gaussian, float]:
        began = time.perf_counter()
        approximation = fit_gaussian(self.model, self.data)
        return approximation, time.perf_counter() - began

    @property
    def approximation(self) -> Gaussian:
        """The Gaussian nearest to the full posterior; some ten passes over the data, made once."""
        return self._timed_approximation[0]

    @property
    def approximation_seconds(self) -> float:
        """What :attr:`approximation` cost; it belongs to the price of every method that uses it."""
        return self._timed_approximation[1]


class Method(Protocol):
    """A way to build a coreset."""

    synthetic: ClassVar[bool]
    """Whether its points are pseudo-points rather than points of the data."""
    uses_approximation: ClassVar[bool]
    """Whether it needs :attr:`PosteriorProblem.approximation`."""

    def build(self, problem: PosteriorProblem, size: int, seed: int = 0) -> Points: ...


def check_size(data_size: int, size: int) -> None:
    if not 1 <= size <= data_size:
        raise InputError(f"A coreset of {data_size} points must have between 1 and {data_size} of them; got {size}.")


def seeded_stream(seed: int) -> np.random.RandomState:
    """A stream of random numbers, seeded anew: making one takes a hundred times as long as seeding it."""
    stream = _stream_of_thread(threading.get_ident())
    stream.seed(seed % 2**32)
    return stream


@lru_cache(maxsize=64)
def _stream_of_thread(thread: int) -> np.random.RandomState:
    del thread
    return np.random.RandomState()


def draw_indices(data_size: int, size: int, seed: int) -> Tensor:
    """``size`` different positions, uniformly; a smaller draw with the same seed is the beginning of a larger one."""
    check_size(data_size, size)
    stream = seeded_stream(seed)
    chosen: dict[int, None] = {}
    while len(chosen) < size:
        chosen[int(stream.randint(data_size))] = None
        if 2 * len(chosen) > data_size:
            rest = np.setdiff1d(np.arange(data_size), np.fromiter(chosen, int))
            chosen.update(dict.fromkeys(stream.permutation(rest)[: size - len(chosen)].tolist()))
    return torch.as_tensor(list(chosen))


def uniform_points(problem: PosteriorProblem, size: int, seed: int) -> Points:
    """A uniform subsample, each point with the weight n / m."""
    indices = draw_indices(problem.data_size, size, seed)
    x, y = problem.data.rows(indices)
    weights = torch.full((size,), problem.data_size / size, dtype=x.dtype)
    return Points(x, y, weights, indices=indices)
