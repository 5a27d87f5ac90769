"""Where a killed construction goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import Tensor

from pseudocoresets._io.files import read_tensors, remove_leftovers, write_tensors
from pseudocoresets.construction.learner import Learner, LearnerState
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.errors import FileFormatError, InputError

CHECKPOINT_SECONDS = 5.0
LONGEST_SECONDS = 1e9
BEFORE_ANNEALING = "before annealing."


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

    def restore(self, learner: Learner, settings: ConstructionSettings) -> None:
        """Bring ``learner`` to where the file is, if there is one."""
        if self.path is None:
            return
        remove_leftovers(self.path)
        if not self.path.exists():
            return
        tensors, document = read_tensors(self.path)
        if document.get("run") != self._fingerprint:
            raise FileFormatError(
                f"The checkpoint '{self.path}' belongs to a run with other settings, data, experts or network; delete "
                "it, or repeat that run's arguments."
            )
        learner.record_names = document["records"]
        kept = _group(tensors, BEFORE_ANNEALING)
        before = LearnerState.from_tensors(kept) if kept else None
        last = LearnerState.from_tensors({k: v for k, v in tensors.items() if not k.startswith(BEFORE_ANNEALING)})
        if last.iteration > settings.iterations:
            raise InputError(
                f"The checkpoint '{self.path}' is already at iteration {last.iteration}; ask for at least as many "
                "iterations, or delete it."
            )
        learner.before_annealing = before
        if document["iterations"] == settings.iterations or settings.annealing == 0:
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


def _group(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
