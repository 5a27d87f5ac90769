"""Whether two posteriors predict alike, which is what a coreset's posterior should do.

With p_i and q_i the class probabilities that two posteriors give input i = 1..n, each averaged over all samples of all
chains:

    top class          mean of [argmax p_i = argmax q_i]
    total variation    mean of (1 / 2) sum_c |p_i[c] - q_i[c]|, from 0 (the same prediction) to 1

Both compare functions, not parameters: the units of a network can be permuted without changing what it predicts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pseudocoresets._io.files import TensorFile, naming, write_tensors
from pseudocoresets._io.schema import ANY_OBJECT, HASH, Array, Constant, Mismatch, Object
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.data.dataset import Split
from pseudocoresets.inference.samples import PosteriorSamples

FORMAT = "predictions"
FORMAT_VERSION = 1
DOCUMENT = Object(
    {"format": Constant((FORMAT,)), "version": Constant((FORMAT_VERSION,)), "inputs": HASH, "about": ANY_OBJECT}
)
ARRAYS = {"probabilities": Array(["(n, classes) float32"])}
PROBABILITY_SLACK = 1e-3
"""How far the sum of predicted probabilities may be from one."""


@dataclass(frozen=True)
class Agreement:
    """How alike two predictive averages are on the same inputs."""

    top_class: float
    """Share of the inputs whose most probable class is the same."""
    total_variation: float
    """Mean distance between the two distributions over classes."""

    def as_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Predictions:
    """A predictive average (n, classes) on known inputs, for a later comparison."""

    probabilities: Tensor
    inputs: str
    """The fingerprint of the images and labels that were predicted."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Whose predictions they are, for the reader."""

    @classmethod
    def of(cls, samples: PosteriorSamples, split: Split) -> Predictions:
        """The average over all samples of all chains."""
        return cls.from_probabilities(samples.predict(split.images), split, samples.settings.as_json())

    @classmethod
    def from_probabilities(cls, probabilities: Tensor, split: Split, about: Mapping[str, Any]) -> Predictions:
        """The same from what each sample predicts, (..., n, classes)."""
        return cls(averaged(probabilities).float().cpu(), split.fingerprint, about)

    def on(self, split: Split) -> Tensor:
        """The probabilities, if these are the inputs that were predicted."""
        if self.inputs != split.fingerprint:
            raise InputError("The predictions are of other images or labels; predict the same data to compare.")
        return self.probabilities

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file with one tensor, ``probabilities``."""
        document = {"format": FORMAT, "version": FORMAT_VERSION, "inputs": self.inputs, "about": dict(self.about)}
        write_tensors(path, {"probabilities": self.probabilities.float().cpu()}, document)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Predictions:
        """Read such a file, checking that it holds probabilities."""
        file = TensorFile.open(path)
        if file.document.get("format") != FORMAT:
            raise FileFormatError(f"'{path}' holds no predictions; write some with 'bpc evaluate --predictions FILE'.")
        with naming(path):
            DOCUMENT.check(file.document, "its metadata")
        probabilities = file.tensors(ARRAYS)["probabilities"]
        with naming(path):
            if bool((probabilities < 0).any()) or bool(((probabilities.sum(1) - 1).abs() > PROBABILITY_SLACK).any()):
                raise Mismatch("its rows are no probabilities: each must be from 0 on and sum to one")
        return cls(probabilities, file.document["inputs"], file.document["about"])


Predictive: TypeAlias = PosteriorSamples | Predictions | Tensor
"""Posterior samples, their predictions, or probabilities (..., n, classes)."""


def agreement(samples: Predictive, reference: Predictive, split: Split | None = None) -> Agreement:
    """How alike two posteriors predict, each by the average over its samples and chains.

    Args:
        samples: Of a coreset's posterior, or what they predict.
        reference: What they should predict like, such as samples of the full data's posterior.
        split: The inputs, such as ``data.test``; not needed for probabilities that are given as tensors.

    Example:
        pc.agreement(pc.sample_posterior(coreset), reference, data.test)
    """
    first, second = (_probabilities(each, split) for each in (samples, reference))
    if first.shape != second.shape:
        raise InputError(
            "Predictions can be compared on the same inputs and classes only; got (inputs, classes) "
            f"{tuple(first.shape)} and {tuple(second.shape)}."
        )
    second = second.to(first.device)
    alike = (first.argmax(-1) == second.argmax(-1)).double().mean()
    return Agreement(float(alike), float((first - second).abs().sum(-1).mean()) / 2)


def mean_agreement(parts: Sequence[Agreement]) -> Agreement | None:
    """The averages of several comparisons; None of none."""
    if not parts:
        return None
    shares, distances = zip(*((part.top_class, part.total_variation) for part in parts), strict=True)
    return Agreement(sum(shares) / len(parts), sum(distances) / len(parts))


def averaged(probabilities: Tensor) -> Tensor:
    """Probabilities (..., n, classes) over all but the last two dimensions, in double precision."""
    whole = probabilities[None] if probabilities.ndim == 2 else probabilities.flatten(0, -3)
    return whole.mean(0, dtype=torch.float64)


def _probabilities(predictive: Predictive, split: Split | None) -> Tensor:
    if isinstance(predictive, Tensor):
        return averaged(predictive)
    if split is None:
        raise InputError("Say on which data the predictions are compared: agreement(samples, reference, data.test).")
    return averaged(predictive.on(split) if isinstance(predictive, Predictions) else predictive.predict(split.images))
