"""``bpc doctor``: what this machine has, for a question or a bug report."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json

PACKAGES = ("pseudocoresets", "torch", "triton", "numpy", "safetensors", "scikit-learn", "pyarrow", "typer", "rich")


def doctor(context: typer.Context, data_dir: o.DataDir = Path("data"), json: o.AsJson = False) -> None:
    """What this machine has: versions, device, memory, whether the fast path is taken, and data sets.

    Example: bpc doctor --json
    """
    from pseudocoresets.core.devices import host_memory
    from pseudocoresets.data import DATASETS

    facts = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        **_device(),
        "fast path": _fast_path(context),
        "memory": _gigabytes(host_memory()),
        "free disk here": _gigabytes(shutil.disk_usage(".").free),
        "data sets here": [entry.name for entry in DATASETS.values() if entry.is_present(data_dir)],
    }
    if json:
        print_json(facts)
        return
    for name, value in facts.items():
        typer.echo(f"{name + ':':<16} {_in_words(value)}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device() -> dict[str, str]:
    import torch

    if not torch.cuda.is_available():
        return {"device": f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"}
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    return {"device": name, "device memory": f"{_gigabytes(free)} free of {_gigabytes(total)}"}


def _fast_path(context: typer.Context) -> str:
    """Whether work is done on it, or why not."""
    from pseudocoresets.backends import PlainBackend

    place = o.place_of(context, "auto")
    if type(place.backend) is not PlainBackend:
        return "yes"
    if place.device.type != "cuda":
        return "no: it needs a GPU that torch can use"
    return "no: triton is not installed" if _version("triton") is None else "no: --precision float32 was asked for"


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version or '(not installed)'}" for name, version in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)
