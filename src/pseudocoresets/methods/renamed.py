"""Options of methods that had another name in the last version; they work for one more, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pseudocoresets.core.errors import RenamedWarning

RENAMED = {"ahead": "expert_epochs", "latest_start": "max_start_epoch", "windows": "unrolls"}
RENAMED_GRADIENTS = {"constant-memory": "stored", "unrolled": "exact"}
GRADIENT_OPTIONS = {"reach": "radius", "stored": "states"}
"""Now options of the gradient, with the estimators that take them."""
TAKEN_BY = {"reach": ("differences",), "stored": ("stored", "differences", "detached")}


def present_name(option: str) -> str:
    """What an option is called now, or the one that it belongs to."""
    return "gradient" if option in GRADIENT_OPTIONS else RENAMED.get(option, option)


def method_options_from(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the method ``name`` under their present names."""
    answer = {RENAMED.get(option, option): value for option, value in options.items()}
    moved = {option: answer.pop(option) for option in GRADIENT_OPTIONS if option in answer}
    gradient = answer.get("gradient", "differences")
    if moved or gradient in RENAMED_GRADIENTS:
        estimator = RENAMED_GRADIENTS.get(gradient, gradient)
        own = [f"{GRADIENT_OPTIONS[old]}={value}" for old, value in moved.items() if estimator in TAKEN_BY[old]]
        answer["gradient"] = f"{estimator}:{','.join(own)}" if own else estimator
    if answer != dict(options):
        old = ", ".join(f"{option}={value}" for option, value in options.items() if answer.get(option) != value)
        new = ", ".join(f"{option}={value}" for option, value in answer.items() if options.get(option) != value)
        warnings.warn(
            f"Options of the method '{name}' have new names: write {new} instead of {old}.",
            RenamedWarning,
            stacklevel=3,
        )
    return answer
