"""The settings of the small experts, coreset and construction that tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pseudocoresets.presets import Preset

NETWORK = "mlp:depth=1,width=32"
METHOD_OPTIONS = {"expert_epochs": 3, "max_start_epoch": 1, "steps": 10, "step_size": 0.1}
CONSTRUCTION = {"iterations": 60, "learning_rate": 20.0, "temperature": 1.0}
TINY = Preset(
    expert_count=1,
    experts={"epochs": 2, "batch_size": 256},
    construction={"iterations": 2},
    sampling={"chains": 2, "steps": 4, "samples": 2},
    methods={"cd": {"steps": 2, "expert_epochs": 1}},
)
"""With which a cell of a comparison takes a moment."""

Invoke = Callable[..., Any]
"""Arguments of the command to its result: exit_code, stdout, stderr."""
