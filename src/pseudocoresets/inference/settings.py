"""How a posterior is sampled."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.options import build_named, written
from pseudocoresets.core.registry import parse_name
from pseudocoresets.core.settings import RATE, SCALE, SEED, SHARE, TEMPERATURE, Range, check_ranges, counted, setting
from pseudocoresets.kernels import KERNELS, OPTIMISERS, SCHEDULES, AnyKernel, Cyclical, build_kernel

PROTOCOLS = {
    "cold": "Chains start from a fresh random initialisation and see only the coreset.",
    "point": "A network is trained on the coreset from scratch by SGD with momentum, or by Adam: a point estimate.",
    "expert": "Chains start from the parameters of an expert that was trained on the full data.",
}
"""Where chains start, by the name of the protocol."""


@dataclass(frozen=True)
class SamplingSettings:
    """How samples are drawn: ``samples`` equally spaced positions from the last ``1 - burn_in`` of ``steps``."""

    sampler: str | AnyKernel = setting(
        "langevin",
        "Sampler of the posterior and its options, such as hmc:leapfrog_steps=5; a kernel's own step size is used. "
        "Protocol 'point': adam, or sgd with options such as sgd:momentum=0, in place of SGD with momentum.",
    )
    chains: int = setting(5, "Independent posterior chains.", within=counted(1e5))
    steps: int = setting(1000, "Steps of each posterior chain.", within=counted(1e9), option="--sampling-steps")
    samples: int = setting(20, "Samples kept of each posterior chain.", within=counted(1e6))
    burn_in: float = setting(0.5, "Share of the steps before the first sample is kept.", within=SHARE)
    step_size: float = setting(0.03, "Step size of each posterior chain.", within=RATE, option="--sampling-step-size")
    schedule: str = setting("constant", "Of the sampler's step size: constant, polynomial, cosine or cyclical.")
    point_learning_rate: float = setting(0.02, "Learning rate of SGD under the protocol 'point'.", within=RATE)
    learned_steps: bool = setting(
        False,
        "Protocol 'point': train at the learning rate, or by the very steps, that the coreset was learned with, where "
        "its file records them.",
    )
    temperature: float = setting(1.0, "Posterior temperature; 1 is Bayes, less is colder.", within=TEMPERATURE)
    prior_scale: float = setting(1.0, "Standard deviation of the Gaussian prior.", within=SCALE)
    augment: bool = setting(True, "Augment images, or see them as they are.")
    mixed_kinds: bool = setting(
        False,
        "Each image draws its own kind of augmentation, or all of a step the same.",
        option="--mixed-kinds/--one-kind",
    )
    start_epoch: int | None = setting(
        -1,
        "Protocol 'expert': the epoch after which chains take an expert's snapshot, counted from the end if negative; "
        "none in a preset or in Python is a random expert and epoch for each chain.",
        within=Range(-1e6, 1e6),
    )
    start_noise: float = setting(
        0.0, "Protocol 'expert': deviation of the Gaussian noise on the snapshot.", within=Range(0, 1e9)
    )
    seed: int = setting(0, "Seed of everything random.", within=SEED)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.optimiser is None and isinstance(self.sampler, str):
            build_kernel(self.sampler, self.step_size)
        SCHEDULES[self.schedule]
        if self.samples > self.steps - round(self.burn_in * self.steps):
            raise InputError(
                f"{self.samples} samples do not fit into the steps after burn-in; raise 'steps' or lower 'samples'."
            )

    @property
    def optimiser(self) -> AnyKernel | None:
        """What trains networks under the protocol ``point`` if the sampler is no sampler but an optimiser."""
        if not isinstance(self.sampler, str):
            return self.sampler if type(self.sampler) in OPTIMISERS.values() else None
        name = parse_name(self.sampler, "sampler")[0]
        if name not in OPTIMISERS:
            return None
        known = {"step_size": self.point_learning_rate} if name == "sgd" else {}
        return build_named(OPTIMISERS, self.sampler, **known)

    def require_for(self, protocol: str) -> None:
        """Refuse to sample by what only trains."""
        if self.optimiser is not None and protocol != "point":
            raise InputError(
                f"'{self.sampler}' trains a network and draws no samples; use it with the protocol 'point', or choose "
                f"one of {', '.join(KERNELS)}."
            )

    def kept_steps(self) -> set[int]:
        """The steps (counted from 1) after which a sample is kept; the last is one of them."""
        schedule = SCHEDULES[self.schedule](self.steps)
        if isinstance(schedule, Cyclical):
            return schedule.keep_at(self.samples)
        first = round(self.burn_in * self.steps)
        return {first + (self.steps - first) * (i + 1) // self.samples for i in range(self.samples)}

    def as_json(self) -> dict[str, Any]:
        sampler = self.sampler if isinstance(self.sampler, str) else written(self.sampler, {**KERNELS, **OPTIMISERS})
        return asdict(replace(self, sampler=sampler))
