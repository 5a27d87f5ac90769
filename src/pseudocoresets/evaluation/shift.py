"""How a posterior predicts when the test images are corrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from pseudocoresets.data.corruptions import SEVERITIES, SHIFT_CORRUPTIONS, corrupt
from pseudocoresets.data.dataset import Split
from pseudocoresets.evaluation.scores import Scores, scores
from pseudocoresets.inference.samples import PosteriorSamples

Corrupted = Callable[[str, int], Tensor]
"""Test images under a corruption at a severity."""


def corrupted_split(split: Split, name: str, severity: int, seed: int = 0) -> Split:
    """The same labels with corrupted images."""
    return Split(corrupt(split.images, name, severity, seed), split.labels, split.dataset)


def evaluate_shift(
    samples: PosteriorSamples,
    split: Split,
    corruptions: Sequence[str] = SHIFT_CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    corrupted: Corrupted | None = None,
) -> dict[str, list[Scores]]:
    """Scores by corruption, at each severity in turn.

    Args:
        samples: Of the posterior of a coreset of images.
        split: Clean test data.
        corruptions: Names of ``data.corruptions.CORRUPTIONS``; the paper's ten unless given.
        severities: From 1 to 5.
        corrupted: Where the corrupted images come from, if not from ``corrupt``.
    """
    images = corrupted or (lambda name, severity: corrupt(split.images, name, severity))
    return {
        name: [scores(samples.predict(images(name, severity)), split.labels) for severity in severities]
        for name in corruptions
    }
