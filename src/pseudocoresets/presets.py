"""Settings that work, by data set and images per class.

``quick`` gives a useful answer in a minute or two on a laptop; ``paper`` has the scale of the published experiments and
wants a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pseudocoresets.errors import InputError

PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class Preset:
    """Settings for each part of a run, as keyword arguments of that part."""

    expert_count: int
    experts: Mapping[str, Any]
    construction: Mapping[str, Any]
    sampling: Mapping[str, Any]
    method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options by method name; a method that is not named uses its own defaults."""

    def method_options(self, name: str) -> dict[str, Any]:
        return dict(self.method.get(name, {}))


def preset_for(name: str, dataset: str, ipc: int) -> Preset:
    """The settings of a preset for one data set and size."""
    if name not in PRESETS:
        raise InputError(f"The preset must be one of {', '.join(PRESETS)}; got '{name}'.")
    if name == "paper":
        return _paper(dataset, ipc)
    return _quick_digits(ipc) if dataset == "digits" else _quick(ipc)


def _quick_digits(ipc: int) -> Preset:
    return Preset(
        expert_count=5,
        experts={"epochs": 12, "batch_size": 32, "learning_rate": 0.01},
        construction={"iterations": 200, "learning_rate": 50.0},
        sampling={"steps": 400, "step_size": 0.2, "temperature": 0.1},
        method={"cd": {"ahead": 4, "latest_start": 3, "steps": 30, "step_size": 0.03}},
    )


def _quick(ipc: int) -> Preset:
    return Preset(
        expert_count=6,
        experts={"epochs": 12},
        construction={"iterations": 500, "learning_rate": 100.0},
        sampling={"steps": 1000, "step_size": 0.1, "temperature": 0.1},
        method={"cd": _paired(ipc) | {"steps": 50}},
    )


def _paper(dataset: str, ipc: int) -> Preset:
    return Preset(
        expert_count=100,
        experts={"epochs": 50},
        construction={"iterations": 2000, "learning_rate": 100.0},
        sampling={"steps": 1000, "step_size": 0.1, "temperature": 0.1},
        method={"cd": _paired(ipc)},
    )


def _paired(ipc: int) -> dict[str, Any]:
    """The fewer the images, the earlier the snapshots and the larger the expert's lead over the chain."""
    return {"ahead": 5, "latest_start": 2} if ipc == 1 else {"ahead": 2, "latest_start": 10}
