"""Uniform subsamples of the full data."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pseudocoresets.core.points import Points
from pseudocoresets.methods.problem import Problem
from pseudocoresets.methods.solver import Solver, check_size


@dataclass(frozen=True)
class Uniform(Solver):
    """m independent draws; a point drawn c times gets the weight c n / m."""

    name: ClassVar[str] = "uniform"
    is_baseline: ClassVar[bool] = True
    needs_source: ClassVar[bool] = False

    def solve(self, problem: Problem, size: int, seed: int = 0) -> Points:
        check_size(problem.energy.data_size, size)
        draws = seeded_stream(seed).randint(problem.energy.data_size, size=size)
        counts = Counter(draws.tolist())
        indices = torch.from_numpy(np.fromiter(counts, np.int64, len(counts)))
        x, y = problem.full_data().rows(indices)
        weights = np.fromiter(counts.values(), np.float64, len(counts)) * (problem.energy.data_size / size)
        return Points(x, y, torch.from_numpy(weights), indices=indices)


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


def uniform_points(problem: Problem, size: int, seed: int) -> Points:
    """A uniform subsample, each point with the weight n / m."""
    indices = draw_indices(problem.energy.data_size, size, seed)
    x, y = problem.full_data().rows(indices)
    weights = torch.full((size,), problem.energy.data_size / size, dtype=x.dtype)
    return Points(x, y, weights, indices=indices)
