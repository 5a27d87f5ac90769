"""Where a killed construction goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pseudocoresets._io.files import read_tensors, remove_leftovers, write_tensors
from pseudocoresets.construction.learner import Learner
from pseudocoresets.core.errors import FileFormatError, InputError


class CheckpointKeeper:
    """Saves a learner's state every so often, and restores it, with the settings it belongs to."""

    def __init__(self, path: str | os.PathLike[str] | None, seconds: float, fingerprint: str) -> None:
        self.path = None if path is None else Path(path)
        self._seconds = seconds
        self._fingerprint = fingerprint
        self._saved = time.monotonic()

    def restore(self, learner: Learner, iterations: int) -> None:
        if self.path is None:
            return
        remove_leftovers(self.path)
        if not self.path.exists():
            return
        state, document = read_tensors(self.path)
        if document.get("settings") != self._fingerprint:
            raise FileFormatError(
                f"The checkpoint '{self.path}' belongs to a run with other settings; delete it, or repeat that run's "
                "arguments."
            )
        if document["iteration"] > iterations:
            raise InputError(
                f"The checkpoint '{self.path}' is already at iteration {document['iteration']}; ask for at least as "
                "many iterations, or delete it."
            )
        learner.restore(state, document["iteration"], document["records"])

    def save_if_due(self, learner: Learner) -> None:
        if time.monotonic() - self._saved >= self._seconds:
            self.save(learner)

    def save(self, learner: Learner) -> None:
        if self.path is not None:
            document = {
                "settings": self._fingerprint,
                "iteration": learner.iteration,
                "records": learner.record_names,
            }
            write_tensors(self.path, learner.state(), document)
        self._saved = time.monotonic()

    def discard(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
