"""Settings that work, by data set and images per class.

``quick`` gives a useful answer in a minute or two on a laptop; ``paper`` has the best that was found for the published
experiments and wants a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pseudocoresets.core.errors import InputError

PRESETS = ("quick", "paper")
CLASSES = 10
AVERAGING = 0.99
SMALL_POPULATIONS: dict[str, dict[str, Any]] = {
    "fkl-hmc": {"max_start_epoch": 15, "burn_in": 2, "samples": 5, "leapfrog_steps": 5, "step_size": 0.04},
    "psvi": {"samples": 30},
}
"""Samples of the methods whose iteration is the dearest; ten HMC samples of ten leapfrogs take four times as long."""
GREY = ("mnist", "fashion-mnist")
"""Here the authors' learning rate of 1000 lets the forward KL's energies grow instead of fall."""
PLAIN_WINDOWS: dict[str, Any] = {"steps": 40, "step_size": 0.05, "horizon": 400}
MOVING_WINDOWS: dict[str, Any] = {
    "steps": 40,
    "step_size": 0.0125,
    "momentum": 0.9,
    "horizon": 400,
    "spread": True,
    "batch_size": 1024,
}
"""Windows of chains that move as SGHMC does."""
OLD_WINDOWS: dict[str, Any] = {**MOVING_WINDOWS, "burn_in": 400, "horizon": 800, "reach": 3.0}
"""Only windows of chains that have forgotten how they started, and differences further apart."""
IN_PARTS: dict[str, Any] = {"points_per_step": 125}
CYCLES: dict[str, Any] = {"schedule": "cyclical", "step_size": 0.04, "samples": 40}
"""SGHMC whose steps grow small four times, which is where samples are taken."""
MANY_CLASSES = {"cifar100": 100, "tiny-imagenet": 200}


class Before(NamedTuple):
    """A construction that comes before another."""

    method: str
    iterations: int
    options: Mapping[str, Any] | None = None
    """Of the method; None: those that the preset has for it."""
    learning_rate: float | None = None
    """Likewise."""


@dataclass(frozen=True)
class Preset:
    """Settings for each part of a run, as keyword arguments of that part."""

    expert_count: int
    experts: Mapping[str, Any]
    construction: Mapping[str, Any]
    sampling: Mapping[str, Any]
    method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options by method name; a method that is not named uses its own defaults."""
    learning: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the construction by method name, where a method learns in another way than ``construction`` says."""
    default_method: str = "cd"
    default_sampler: str = "langevin"
    by_sampler: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What belongs to one sampler only, such as its step size."""
    before: Mapping[str, tuple[Before, ...]] = field(default_factory=dict)
    """By method name, what makes the coreset that it starts from, in its order; the others start from real images."""

    def construction_for(self, method: str) -> dict[str, Any]:
        return {**self.construction, **self.learning.get(method, {})}

    def sampling_by(self, sampler: str | None) -> dict[str, Any]:
        name = self.default_sampler if sampler is None else sampler
        return {**self.sampling, **self.by_sampler.get(name, {}), "sampler": name}

    def method_options(self, name: str) -> dict[str, Any]:
        return dict(self.method.get(name, {}))


@dataclass(frozen=True)
class ThroughChainRecipe:
    """How ``bptt`` is used: its windows, how fast and how long the points learn, and what comes before."""

    windows: Mapping[str, Any]
    learning_rate: float
    iterations: int
    before: tuple[Before, ...] = ()
    annealing: float = 0.5
    mixed_kinds: bool = True
    """Whether each image draws its own kind of augmentation, here and when the posterior is sampled."""
    sampling_steps: int = 1000
    sghmc: Mapping[str, Any] = field(default_factory=lambda: {"step_size": 0.0125})
    """What belongs to SGHMC when the posterior is sampled."""

    def learning(self) -> dict[str, Any]:
        own = {"learning_rate": self.learning_rate, "iterations": self.iterations, "annealing": self.annealing}
        return own | {
            "mixed_kinds": self.mixed_kinds,
            "optimiser": "adam",
            "averaging": AVERAGING,
            "temperature": 0.01,
        }

    def sampling(self) -> dict[str, Any]:
        return {"steps": self.sampling_steps, "mixed_kinds": self.mixed_kinds, "temperature": 0.01}

    @property
    def sampler(self) -> str:
        """The posterior is sampled as the chains of the windows move."""
        return "sghmc" if self.windows.get("momentum") else "langevin"


def preset_for(name: str, dataset: str, ipc: int) -> Preset:
    """The settings of a preset for one data set and size."""
    if name not in PRESETS:
        raise InputError(f"The preset must be one of {', '.join(PRESETS)}; got '{name}'.")
    if name == "paper":
        return _paper(dataset, ipc)
    return _quick_digits(ipc) if dataset == "digits" else _quick(ipc)


def _quick_digits(ipc: int) -> Preset:
    """Chosen on a part of the training data held out; experts of twelve short epochs, starts among the first four.

    With so few data the posterior at temperature 1 is wide: its Langevin noise would drown thirty steps of a chain.
    """
    expert_epochs = 4 if ipc == 1 else 2
    paired = {"expert_epochs": expert_epochs, "max_start_epoch": 3, "steps": 30, "step_size": 0.03}
    few = {"samples": 5, "at_once": 5}
    covariance = {"batch_size": 128, "samples": 10}
    summed = 1.0 if ipc == 1 else 10.0
    return Preset(
        expert_count=5,
        experts={"epochs": 12, "batch_size": 32, "learning_rate": 0.01},
        construction={"iterations": 200, "learning_rate": 50.0 if ipc == 1 else 200.0},
        sampling={"steps": 400, "step_size": 0.2, "temperature": 0.1},
        method={
            "cd": paired,
            "fkl": paired | few,
            "rkl": {"max_start_epoch": 3} | covariance,
            "wasserstein": paired,
            "cd-wasserstein": paired,
            "fkl-hmc": {
                "expert_epochs": expert_epochs,
                "max_start_epoch": 3,
                "steps": 30,
                "samples": 5,
                "burn_in": 2,
                "leapfrog_steps": 5,
            },
            "fkl-kfl": paired | few,
            "psvi": {"steps": 40, "langevin_steps": 10} | covariance,
            "bptt": {"steps": 30, "step_size": 0.2, "batch_size": 256, "reach": 1.0},
        },
        before={"bptt": (Before("wasserstein", 100),)},
        learning={
            "bptt": {"optimiser": "adam", "learning_rate": 0.03, "averaging": 0.98, "iterations": 100},
            "cd": {"temperature": 0.1},
            "rkl": {"learning_rate": summed},
            "psvi": {"learning_rate": summed, "iterations": 100},
            "wasserstein": {"iterations": 100},
            "cd-wasserstein": {"iterations": 100},
            "fkl-hmc": {"iterations": 100},
            "fkl-kfl": {"iterations": 100},
        },
    )


def _quick(ipc: int) -> Preset:
    paired = _paired(ipc)
    rate, annealing = (0.005, 0.0) if ipc == 1 else (0.003, 0.5)
    through = ThroughChainRecipe({}, rate, 200, annealing=annealing, mixed_kinds=False)
    return Preset(
        expert_count=6,
        experts={"epochs": 12},
        construction={"iterations": 500, "learning_rate": 100.0},
        sampling={"steps": 1000, "step_size": 0.1, "temperature": 0.1},
        method=_authors(ipc) | {"cd": paired | {"steps": 50}, "cd-wasserstein": paired | {"steps": 30}},
        before={"bptt": (Before("wasserstein", 200),)},
        learning=_authors_learning(ipc, CLASSES) | {"bptt": through.learning()},
    )


def _paper(dataset: str, ipc: int) -> Preset:
    learning = _authors_learning(ipc, MANY_CLASSES.get(dataset, CLASSES))
    matched = {"optimiser": "adam", "learning_rate": 0.02, "averaging": AVERAGING}
    rate = 50.0 if ipc == 1 else 200.0 if ipc <= 10 else 500.0
    through = _through_chain(ipc, dataset)
    if dataset in GREY:
        learning["fkl"] |= {"learning_rate": 100.0, "averaging": AVERAGING}
    return Preset(
        expert_count=6,
        experts={"epochs": 30},
        construction={"iterations": 2000, "learning_rate": 100.0},
        sampling=through.sampling(),
        default_sampler=through.sampler,
        by_sampler={"langevin": {"step_size": 0.1}, "sghmc": through.sghmc},
        method=_authors(ipc) | _far_reaching(ipc) | {"bptt": through.windows} | SMALL_POPULATIONS,
        default_method="bptt",
        before={"bptt": through.before},
        learning={name: settings | {"iterations": 5000} for name, settings in learning.items()}
        | {
            "cd": {"learning_rate": rate, "momentum": 0.5, "temperature": 0.01, "averaging": AVERAGING},
            "wasserstein": matched,
            "cd-wasserstein": matched,
            "bptt": through.learning(),
        },
    )


def _through_chain(ipc: int, dataset: str) -> ThroughChainRecipe:
    """Found on held-out training data (docs/research-notes.md)."""
    if ipc == 1:
        return _one_image_through_chain(dataset)
    return _ten_images_through_chain(dataset) if ipc <= 10 else _fifty_images_through_chain(dataset)


def _one_image_through_chain(dataset: str) -> ThroughChainRecipe:
    """Matching, plain windows of all ages, windows of old chains that move."""
    matched = Before("wasserstein", 400)
    if dataset == "cifar10":
        return ThroughChainRecipe(PLAIN_WINDOWS, 0.005, 500, (matched,), annealing=0.0, mixed_kinds=False)
    plain, old = {"fashion-mnist": (2000, 1500), "svhn": (5000, 2000)}.get(dataset, (4000, 2000))
    young = Before("bptt", plain, {**PLAIN_WINDOWS, "batch_size": 1024}, learning_rate=0.01)
    return ThroughChainRecipe(OLD_WINDOWS, 0.005, old, (matched, young), sampling_steps=2000)


def _ten_images_through_chain(dataset: str) -> ThroughChainRecipe:
    """Matching harms MNIST, old chains harm SVHN."""
    matched = Before("wasserstein", 400)
    match dataset:
        case "mnist":
            return ThroughChainRecipe(MOVING_WINDOWS, 0.02, 2000)
        case "fashion-mnist":
            young = Before("bptt", 2500, MOVING_WINDOWS, learning_rate=0.003)
            old = Before("bptt", 1500, OLD_WINDOWS, learning_rate=0.003)
            return ThroughChainRecipe(OLD_WINDOWS, 0.005, 2500, (matched, young, old), sampling_steps=2000)
        case "svhn":
            return ThroughChainRecipe(MOVING_WINDOWS, 0.003, 1000, (matched,), sampling_steps=1600, sghmc=CYCLES)
        case "cifar10":
            return ThroughChainRecipe(MOVING_WINDOWS, 0.003, 500, (matched,), mixed_kinds=False, sampling_steps=4000)
    return ThroughChainRecipe(MOVING_WINDOWS, 0.003, 1000, (matched,))


def _fifty_images_through_chain(dataset: str) -> ThroughChainRecipe:
    """The same, with steps that see a part of the images."""
    moving, old = MOVING_WINDOWS | IN_PARTS, OLD_WINDOWS | IN_PARTS
    matched = Before("wasserstein", 350)
    match dataset:
        case "mnist":
            return ThroughChainRecipe(old, 0.005, 1000, (Before("bptt", 1500, moving, learning_rate=0.02),))
        case "fashion-mnist":
            stages = (matched, Before("bptt", 2000, moving), Before("bptt", 1000, old))
            return ThroughChainRecipe(old, 0.005, 1500, stages)
        case "svhn":
            return ThroughChainRecipe(moving, 0.003, 1200, (matched,), sghmc=CYCLES)
        case "cifar10":
            return ThroughChainRecipe(moving, 0.003, 400, (matched, matched), mixed_kinds=False)
    return ThroughChainRecipe(moving, 0.003, 1200, (matched,))


def _far_reaching(ipc: int) -> dict[str, dict[str, Any]]:
    """Found on held-out training data (docs/research-notes.md): the fewer the images, the longer the chains."""
    if ipc == 1:
        chain: dict[str, Any] = {"steps": 80, "expert_epochs": 4, "max_start_epoch": 3, "step_size": 0.02}
        slow = {"step_size_learning_rate": 1e-6}
        contrast = {"expert_epochs": 5, "max_start_epoch": 2, "step_size": 0.03}
        return {"cd": contrast, "wasserstein": chain | slow, "cd-wasserstein": chain | slow}
    max_start_epoch = 15 if ipc <= 10 else 27
    chain = {
        "steps": 30 if ipc <= 10 else 60,
        "expert_epochs": 2,
        "max_start_epoch": max_start_epoch,
        "step_size": 0.03,
    }
    contrast = {"expert_epochs": 2, "max_start_epoch": max_start_epoch, "step_size": 0.02}
    parts = {} if ipc <= 10 else {"points_per_step": 125}
    return {"cd": contrast, "wasserstein": chain | parts, "cd-wasserstein": chain}


def _paired(ipc: int) -> dict[str, Any]:
    """The fewer the images, the earlier the snapshots and the larger the expert's lead over the chain."""
    return {"expert_epochs": 5, "max_start_epoch": 2} if ipc == 1 else {"expert_epochs": 2, "max_start_epoch": 10}


def _authors(ipc: int) -> dict[str, dict[str, Any]]:
    """The options of Kim et al.'s published code by images per class; 'fkl-hmc' and 'fkl-kfl' follow 'fkl'.

    They take one image a class, ten (the methods' own defaults) and twenty; more than ten is treated as twenty.
    """
    if ipc == 1:
        start: dict[str, Any] = {"max_start_epoch": 1}
        chain = start | {"steps": 50, "step_size": 0.01}
        hmc = start | {"expert_epochs": 1, "descent_step_size": 0.01}
        matching = chain | {"expert_epochs": 2, "step_size_learning_rate": 1e-7}
        return {"fkl": chain, "fkl-kfl": chain, "fkl-hmc": hmc, "rkl": chain | {"samples": 10}, "wasserstein": matching}
    if ipc <= 10:
        return {}
    late: dict[str, Any] = {"max_start_epoch": 29}
    gaussian = dict.fromkeys(("fkl", "fkl-kfl", "fkl-hmc"), late)
    return {**gaussian, "rkl": late | {"samples": 10}, "wasserstein": late | {"expert_epochs": 2}}


def _authors_learning(ipc: int, classes: int) -> dict[str, dict[str, Any]]:
    """The learning rates and momentum of Kim et al.'s published code; 'psvi' is set like 'rkl'.

    Their reverse KL has no momentum, and its learning rate is 1000 m sigma^2 in this library's units.
    """
    matched = {"learning_rate": 1000.0, "momentum": 0.5}
    covariance = {"learning_rate": 0.1 * ipc * classes}
    names = ("fkl", "fkl-hmc", "fkl-kfl", "wasserstein", "cd-wasserstein")
    return {name: dict(matched) for name in names} | {"rkl": covariance, "psvi": covariance}
