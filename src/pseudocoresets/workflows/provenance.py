"""What every recorded result carries: the command, the commit and the machine that made it."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from pseudocoresets.core.text import printable

HERE = Path(__file__).resolve()


def provenance(command: str | None = None, device: torch.device | None = None) -> dict[str, Any]:
    """Command, commit (or the variable COMMIT where there is no repository), device and versions."""
    typed = "python " + " ".join([Path(sys.argv[0]).as_posix(), *sys.argv[1:]])
    return {
        "command": typed if command is None else command,
        "commit": os.environ.get("COMMIT") or _commit(),
        "device": _device(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def typed_command() -> str:
    """The command ``bpc`` as it was typed, whatever started it, as a file can hold it."""
    return printable(shlex.join(["bpc", *sys.argv[1:]]))


def _device(device: torch.device | None) -> str:
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    return torch.cuda.get_device_name(device) if on_gpu else f"CPU, {os.cpu_count()} cores"


def _commit() -> str:
    """Of the repository that this file belongs to, and not of one that merely holds an installed copy."""
    if _git("ls-files", "--error-unmatch", HERE.name) is None:
        return "unknown"
    return _git("rev-parse", "--short", "HEAD") or "unknown"


def _git(*words: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(HERE.parent), *words], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
