"""Reading what a run left behind."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocoresets._io.documents import parse_json
from pseudocoresets._io.files import read_json, read_tensors, read_text
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.coreset import CORESET_FILE, Coreset

CONFIGURATION_FILE = "config.json"
METRICS_FILE = "metrics.json"
LOG_FILE = "log.jsonl"
ABOUT_FILE = "about.json"
EXAMPLES_FILE = "examples.safetensors"
INITIAL_FILE = "initial.safetensors"
PRIVACY_FOLDER = "privacy"
"""Where ``bpc privacy audit`` leaves what it found of a run."""


@dataclass(frozen=True)
class Run:
    """One run: what was asked for, what came out, and how it went. Only the first three must be there."""

    folder: Path
    coreset: Coreset
    metrics: dict[str, Any]
    configuration: dict[str, Any] | None
    initial: Coreset | None
    log: list[dict[str, Any]]
    about: dict[str, Any] = field(default_factory=dict)
    """The command and when it ended, where they were recorded."""
    examples: dict[str, Tensor] = field(default_factory=dict)
    """Test images, as uint8, by what they are examples of."""


def read_run(folder: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> Run:
    """Read a run folder; a file that is there must be whole. What it leaves out of whitening may be in ``data_dir``."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"There is no run folder '{folder}'; name one that 'bpc run' wrote.")
    for name in (METRICS_FILE, CORESET_FILE):
        if not (folder / name).is_file():
            raise FileFormatError(f"'{folder}' is not a finished run: it lacks {name}; run 'bpc run' to the end.")
    configuration, initial, log = (folder / name for name in (CONFIGURATION_FILE, INITIAL_FILE, LOG_FILE))
    about, examples = folder / ABOUT_FILE, folder / EXAMPLES_FILE
    return Run(
        folder=folder,
        coreset=Coreset.load(folder / CORESET_FILE, data_dir=data_dir),
        metrics=_read_object(folder / METRICS_FILE),
        configuration=_read_object(configuration) if configuration.is_file() else None,
        initial=Coreset.load(initial, data_dir=data_dir) if initial.is_file() else None,
        log=_read_log(log) if log.is_file() else [],
        about=_read_object(about) if about.is_file() else {},
        examples=_read_examples(examples) if examples.is_file() else {},
    )


def _read_object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise FileFormatError(f"'{path}' holds the type {type(content).__name__} where a JSON object should be.")
    return content


def _read_examples(path: Path) -> dict[str, Tensor]:
    tensors, _ = read_tensors(path)
    if not all(each.dtype == torch.uint8 and each.dim() == 4 and 0 not in each.shape for each in tensors.values()):
        raise FileFormatError(f"'{path}' holds no images; run again, or remove it.")
    return tensors


def _read_log(path: Path) -> list[dict[str, Any]]:
    """The records by iteration; of an iteration that was repeated after an interruption, the last.

    A last line without an end is what a killed run leaves, so it is dropped.
    """
    lines = read_text(path).split("\n")
    records: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines[:-1], start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            records[int(record["iteration"])] = record
        except (ValueError, TypeError, KeyError, OverflowError):
            raise FileFormatError(
                f"Line {number} of '{path}' is not a JSON object with an iteration; restore the file from a copy."
            ) from None
    return [records[iteration] for iteration in sorted(records)]
