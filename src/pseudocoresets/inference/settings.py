"""How a posterior is sampled."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.options import written
from pseudocoresets.core.registry import parse_name
from pseudocoresets.kernels import KERNELS, SCHEDULES, AnyKernel, Cyclical


@dataclass(frozen=True)
class SamplingSettings:
    """How samples are drawn: ``samples`` equally spaced positions from the last ``1 - burn_in`` of ``steps``."""

    sampler: str | AnyKernel = "langevin"
    """A kernel, whose own step size is used, or the name of one and its options, such as ``hmc:leapfrog_steps=5``."""
    chains: int = 5
    steps: int = 1000
    samples: int = 20
    burn_in: float = 0.5
    step_size: float = 0.03
    schedule: str = "constant"
    point_learning_rate: float = 0.02
    temperature: float = 1.0
    prior_scale: float = 1.0
    augment: bool = True
    mixed_kinds: bool = False
    """Whether each image draws its own kind of augmentation, rather than all of a step the same."""
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.chains, self.steps, self.samples) < 1:
            raise InputError("Sampling needs at least one chain, one step and one sample.")
        if isinstance(self.sampler, str):
            KERNELS[parse_name(self.sampler, "sampler")[0]]
        SCHEDULES[self.schedule]
        if not 0 <= self.burn_in < 1:
            raise InputError(f"Burn-in is a fraction of the steps, from 0 to below 1; got {self.burn_in}.")
        if self.samples > self.steps - round(self.burn_in * self.steps):
            raise InputError(
                f"{self.samples} samples do not fit into the steps after burn-in; raise 'steps' or lower 'samples'."
            )

    def kept_steps(self) -> set[int]:
        """The steps (counted from 1) after which a sample is kept; the last is one of them."""
        schedule = SCHEDULES[self.schedule](self.steps)
        if isinstance(schedule, Cyclical):
            return schedule.keep_at(self.samples)
        first = round(self.burn_in * self.steps)
        return {first + (self.steps - first) * (i + 1) // self.samples for i in range(self.samples)}

    def as_json(self) -> dict[str, Any]:
        sampler = self.sampler if isinstance(self.sampler, str) else written(self.sampler, KERNELS)
        return asdict(replace(self, sampler=sampler))
