"""What an attacker who knows how a coreset was made does: the same with halves of the data, in and out.

Shadows come in pairs: one is made from a random half of each class of the pool, the other from the rest, so that every
image is in one of each pair. Each is a unit of work for every way from data to predictions: its answers are kept in a
file, so that a process that was killed goes on with the next one, and audits that share a folder share what is theirs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from pseudocoresets._io.files import TensorFile, make_folder, write_tensors
from pseudocoresets._io.schema import Array
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.fingerprint import fingerprint
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.coreset import library_versions
from pseudocoresets.data.dataset import Dataset
from pseudocoresets.privacy.membership import FEWEST_SHADOWS
from pseudocoresets.privacy.questions import Answers

MakeShadow: TypeAlias = Callable[[Dataset, Path | None, Collection[str]], Answers]
"""Is given half of the data, a folder for checkpoints, and which ways are wanted."""

ANSWER = "answer"
ARRAYS = {ANSWER: Array(["(questions,) float64"])}


@dataclass(frozen=True)
class Shadows:
    """The way to make shadows, and where their answers are kept."""

    pool: Dataset
    make: MakeShadow
    seed: int
    identities: Mapping[str, str]
    """For each way, all that decides its answers but the shadow's number, the seed and the library."""
    folder: Path | None = None

    def answers(self, number: int) -> tuple[Answers, Tensor]:
        """Those of one shadow, read where they are kept, and which of the pool it was made from."""
        inside = half(self.pool.train.labels, number, self.seed)
        chosen = self.pool.train.subset(inside.nonzero().squeeze(1))
        data = replace(self.pool, train=chosen, transform=self.pool.transform_source)
        if self.folder is None:
            return self.make(data, None, self.identities.keys()), inside
        place, version = self.folder, library_versions()["pseudocoresets"]
        own = {way: fingerprint(each, way, number, self.seed, version) for way, each in self.identities.items()}
        paths = {way: place / f"shadow-{number:04d}-{each[:8]}.safetensors" for way, each in own.items()}
        kept = {way: _kept(path, own[way]) for way, path in paths.items()}
        missing = [way for way, answer in kept.items() if answer is None]
        if missing:
            unfinished = make_folder(place / f"unfinished-{fingerprint(own)}")
            made = self.make(data, unfinished, missing)
            for way in missing:
                write_tensors(paths[way], {ANSWER: made[way]}, {"identity": own[way], "shadow": number, "way": way})
            shutil.rmtree(unfinished)
            kept |= made
        return {way: answer for way, answer in kept.items() if answer is not None}, inside


def require_shadows(count: int, data: Dataset) -> None:
    """Refuse before the work what cannot be a set of pairs."""
    if count < FEWEST_SHADOWS or count % 2:
        raise InputError(
            f"LiRA needs an even number of at least {FEWEST_SHADOWS} shadows, half of them with each image and half "
            f"without; got {count}."
        )
    if int(data.train.labels.bincount(minlength=len(data.classes)).min()) < 2:
        raise InputError("Every class needs at least two training images, one for each half of the data.")


def half(labels: Tensor, number: int, seed: int) -> Tensor:
    """Which of the data (n,) the shadow of that number is made from."""
    generator = generator_for(seed, "shadow halves", number // 2)
    first = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        first[members[torch.randperm(len(members), generator=generator)[: len(members) // 2]]] = True
    return first if number % 2 == 0 else ~first


def _kept(path: Path, identity: str) -> Tensor | None:
    """What an earlier process left, if it is whole and of the same kind."""
    try:
        file = TensorFile.open(path)
        return file.tensors(ARRAYS)[ANSWER] if file.document.get("identity") == identity else None
    except FileFormatError:
        return None
