"""Schedules: the factor on a kernel's step size at step t = 0, 1, ..., K - 1.

    constant      1
    polynomial    (1 + t / b)^-gamma                       (Welling & Teh 2011)
    cosine        f + (1 - f) (1 + cos(pi t / K)) / 2      from 1 towards f
    drop          1 before step d, f from there on
    cyclical      (1 + cos(pi r)) / 2,  r = (t mod C) / C,  C = ceil(K / M)      (Zhang et al. 2020)

In each of its M cycles the cyclical schedule explores while r < beta, by large steps without noise, and
samples after that, by small steps with noise; only positions from the sampling phase are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import Registry

Schedule: TypeAlias = Callable[[int], float]
"""The factor on the step size at step t."""


@dataclass(frozen=True)
class Constant:
    """The step size as it is."""

    def __call__(self, t: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Polynomial:
    """(1 + t / b)^-gamma with b = ``scale`` and gamma = ``power``.

    A power in (1/2, 1] makes the bias of an unadjusted kernel vanish in the long run.
    """

    scale: float = 100.0
    power: float = 0.55

    def __post_init__(self) -> None:
        if not (self.scale > 0 and self.power >= 0):
            raise InputError(
                "A polynomial schedule needs a positive scale and a power that is not negative; "
                f"got {self.scale} and {self.power}."
            )

    def __call__(self, t: int) -> float:
        return float((1 + t / self.scale) ** -self.power)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine over ``steps`` steps, from 1 towards ``final``; constant after that."""

    steps: int
    final: float = 0.01

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.final <= 1:
            raise InputError(
                "A cosine schedule needs at least one step and a final factor in (0, 1]; "
                f"got {self.steps} and {self.final}."
            )

    def __call__(self, t: int) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(t / self.steps, 1.0))) / 2


@dataclass(frozen=True)
class Drop:
    """1 for the first d = ``at`` steps, f = ``factor`` after them."""

    at: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.at < 0 or not self.factor > 0:
            raise InputError(
                f"A drop needs a step that is not negative and a positive factor; got {self.at} and {self.factor}."
            )

    def __call__(self, t: int) -> float:
        return 1.0 if t < self.at else self.factor


@dataclass(frozen=True)
class Cyclical:
    """M = ``cycles`` cosine cycles over K = ``steps``; ``exploration`` is beta."""

    steps: int
    cycles: int = 4
    exploration: float = 0.8

    def __post_init__(self) -> None:
        if not 1 <= self.cycles <= self.steps:
            raise InputError(f"{self.cycles} cycles do not fit into {self.steps} steps.")
        if not 0 <= self.exploration < 1:
            raise InputError(
                f"The exploration phase is a fraction of a cycle, from 0 to below 1; got {self.exploration}."
            )

    @property
    def cycle_length(self) -> int:
        """C; the last cycle is shorter where C does not divide the steps."""
        return math.ceil(self.steps / self.cycles)

    def progress(self, t: int) -> float:
        """r, how far step t is into its cycle."""
        return (t % self.cycle_length) / self.cycle_length

    def __call__(self, t: int) -> float:
        return (1 + math.cos(math.pi * self.progress(t))) / 2

    def explores(self, t: int) -> bool:
        """Whether step t, counted from 0, belongs to an exploration phase."""
        return self.progress(t) < self.exploration

    def keep_at(self, samples: int) -> set[int]:
        """``samples`` steps, counted from 1, to keep positions after: spread evenly over the sampling phases.

        The last step of the run is always among them where it belongs to a sampling phase.
        """
        sampling = [t + 1 for t in range(self.steps) if not self.explores(t)]
        if not 1 <= samples <= len(sampling):
            raise InputError(
                f"{samples} samples do not fit into the {len(sampling)} steps of the sampling phases; "
                "lower 'samples' or 'exploration', or take more steps."
            )
        return {sampling[len(sampling) * (i + 1) // samples - 1] for i in range(samples)}


def explores(schedule: Schedule | None, t: int) -> bool:
    """Whether step t, counted from 0, belongs to an exploration phase; only a cyclical schedule has any."""
    return isinstance(schedule, Cyclical) and schedule.explores(t)


SCHEDULES: Registry[Callable[[int], Schedule]] = Registry(
    "schedule",
    {
        "constant": lambda steps: Constant(),
        "polynomial": lambda steps: Polynomial(),
        "cosine": Cosine,
        "cyclical": Cyclical,
    },
)
"""Every schedule by name, for a run of so many steps."""
