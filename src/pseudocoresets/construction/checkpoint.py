"""Where a killed construction goes on."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets._io.files import TensorFile, naming, remove_leftovers, write_tensors
from pseudocoresets._io.schema import ANY_SIZE, HASH, NAME, SIZE, ListOf, Mismatch, Object
from pseudocoresets.construction.learner import Learner, LearnerState
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.methods.method import StateShape

CHECKPOINT_SECONDS = 5.0
LONGEST_SECONDS = 1e9
BEFORE_ANNEALING = "before annealing."


DOCUMENT = Object({"run": HASH, "iteration": ANY_SIZE, "iterations": SIZE, "records": ListOf(NAME, 1000)})
STATE_DTYPES = frozenset((torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool))
STATE_NAME = re.compile(r"records|(leaves|averages|method)/[^/]+|optimiser/[^/]+/[^/]+")


class Checkpoint(NamedTuple):
    """What a checkpoint holds."""

    run: str
    """The identity of the run that it belongs to."""
    iterations: int
    """How many the run was asked for."""
    records: tuple[str, ...]
    last: LearnerState
    before: LearnerState | None


class CheckpointKeeper:
    """Saves a learner's state every so often, and restores it for the run that it belongs to.

    Beside the last state it keeps that before learning rates began to fall, from which a run of more iterations goes on
    as if it had been asked for them at once.
    """

    def __init__(self, path: str | os.PathLike[str] | None, seconds: float, fingerprint: str) -> None:
        self.path = None if path is None else Path(path)
        if not 0 <= seconds <= LONGEST_SECONDS:
            most = f"{LONGEST_SECONDS:g} seconds"
            raise InputError(f"The time between checkpoints (--checkpoint-seconds) is 0 to {most}; got {seconds}.")
        self._seconds = seconds
        self._fingerprint = fingerprint
        self._saved = time.monotonic()

    def restore(
        self,
        learner: Learner,
        settings: ConstructionSettings,
        method_shapes: Mapping[str, StateShape] | None = None,
    ) -> None:
        """Bring ``learner`` to where the file is, if there is one; its method's state must have ``method_shapes``."""
        if self.path is None:
            return
        remove_leftovers(self.path)
        if not self.path.exists():
            return
        found = read_checkpoint(self.path)
        if found.run != self._fingerprint:
            raise FileFormatError(
                f"The checkpoint '{self.path}' belongs to a run with other settings, data, experts or network; delete "
                "it, or repeat that run's arguments."
            )
        last, before = found.last, found.before
        with naming(self.path):
            for state in (last,) if before is None else (last, before):
                learner.require_own(state, method_shapes)
        if last.iteration > settings.iterations:
            raise InputError(
                f"The checkpoint '{self.path}' is already at iteration {last.iteration}; ask for at least as many "
                "iterations, or delete it."
            )
        learner.record_names = list(found.records)
        learner.before_annealing = before
        if found.iterations == settings.iterations or settings.annealing == 0:
            learner.restore(last)
        elif before is not None and before.iteration <= settings.iterations_at_full_rate:
            learner.restore(before)

    def save_if_due(self, learner: Learner, settings: ConstructionSettings) -> None:
        if time.monotonic() - self._saved >= self._seconds:
            self.save(learner, settings)

    def save(self, learner: Learner, settings: ConstructionSettings) -> None:
        """Write the last sound state."""
        if self.path is not None:
            tensors = learner.sound.tensors()
            if settings.annealing > 0 and learner.before_annealing is not None:
                before = learner.before_annealing.tensors()
                tensors |= {BEFORE_ANNEALING + name: tensor.clone() for name, tensor in before.items()}
            document = {
                "run": self._fingerprint,
                "iteration": learner.sound.iteration,
                "iterations": settings.iterations,
                "records": learner.record_names,
            }
            write_tensors(self.path, tensors, document)
        self._saved = time.monotonic()

    def discard(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The content of a checkpoint, which is whole: its checksum is that of what was written."""
    file = TensorFile.open(path)
    with naming(path):
        DOCUMENT.check(file.document, "its metadata")
        if file.checksum is None:
            raise Mismatch("it has no checksum")
        tensors = file.tensors()
        names, kept = file.document["records"], _group(tensors, BEFORE_ANNEALING)
        last = _state({k: v for k, v in tensors.items() if not k.startswith(BEFORE_ANNEALING)}, names)
        before = _state(kept, names) if kept else None
    return Checkpoint(file.document["run"], file.document["iterations"], tuple(names), last, before)


def _state(tensors: Mapping[str, Tensor], records: Sequence[str]) -> LearnerState:
    """The state in these tensors, if they have the names of one, its records have their columns and all are finite."""
    for name, tensor in tensors.items():
        if not STATE_NAME.fullmatch(name):
            raise Mismatch(f"it holds a tensor {name[:40]!r}, which belongs to no state")
        if tensor.dtype not in STATE_DTYPES:
            raise Mismatch(f"'{name}' holds {tensor.dtype}, which no state does")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Mismatch(f"'{name}' holds values that are not finite")
    rows = tensors.get("records")
    if rows is None or rows.dtype != torch.float64 or rows.dim() != 2:
        raise Mismatch("it has no records of its iterations")
    if len(rows) and rows.shape[1] != len(records):
        raise Mismatch(f"it names {len(records)} records, and holds {rows.shape[1]}")
    return LearnerState.from_tensors(tensors)


def _group(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
