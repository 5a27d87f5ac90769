"""What every recorded result carries: the command, the commit and the machine that made it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def provenance() -> dict[str, Any]:
    """Command, commit (or the variable COMMIT where there is no repository), device and versions."""
    return {
        "command": "python " + " ".join([Path(sys.argv[0]).as_posix(), *sys.argv[1:]]),
        "commit": os.environ.get("COMMIT") or _commit(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"
