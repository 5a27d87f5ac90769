"""The settings of the small experts, coreset and construction that tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NETWORK = "mlp:depth=1,width=32"
METHOD_OPTIONS = {"expert_epochs": 3, "max_start_epoch": 1, "steps": 10, "step_size": 0.1}
CONSTRUCTION = {"iterations": 60, "learning_rate": 20.0, "temperature": 1.0}

Invoke = Callable[..., Any]
"""Arguments of the command to its result: exit_code, stdout, stderr."""
