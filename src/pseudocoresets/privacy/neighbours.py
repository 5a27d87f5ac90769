"""How near points are to the training data, beside how near images are that were held out of it.

For each point x, d(x) is the Euclidean distance to the nearest training image: in pixels, or in the features of a
network, which see two images of one thing as near. A point that was copied has d = 0. Two tests of whether points are
nearer than they should be:

    rank test   Mann-Whitney: d of the points tends to be smaller than d of held-out images
    share       the nearest real image of a point is a training image, not a held-out one, more often than n of n + h
                times, n and h being how many there are of each: what holds for points that do not know which is which
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pseudocoresets.privacy.roc import Share, share

NEIGHBOURS_AT_ONCE = 5000
CANDIDATES = 4
"""Neighbours that are found by products of matrices, whose rounding a difference of near images drowns in, and then
measured exactly."""

Embedding: TypeAlias = Callable[[Tensor], Tensor]
"""From raw images to vectors (n, size)."""


@dataclass(frozen=True)
class Nearest:
    """The distance of each point to its nearest neighbour, and which one that is."""

    distances: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Nearness:
    """How near points are to the training data in one space."""

    points: Nearest
    """Of the points, among the training images."""
    held_out: Tensor
    """Distances of held-out images to their nearest training images."""
    p_value: float
    """Of the rank test, one-sided."""
    from_training: Share
    """Of the points, those whose nearest real image is a training image."""
    expected: float
    """What that share is for points that know nothing of the training data."""
    share_p_value: float

    def as_json(self) -> dict[str, Any]:
        return {
            "median_distance": float(self.points.distances.median()),
            "median_distance_held_out": float(self.held_out.median()),
            "rank_test_p": self.p_value,
            "nearest_is_training": self.from_training.as_json(),
            "nearest_is_training_expected": self.expected,
            "nearest_is_training_p": self.share_p_value,
            "distances": self.points.distances.tolist(),
            "nearest_training_images": self.points.indices.tolist(),
        }


def nearest(points: Tensor, images: Tensor, embed: Embedding) -> Nearest:
    """The nearest of ``images`` to each of ``points`` (m, size), which are vectors already."""
    starts = range(0, len(images), NEIGHBOURS_AT_ONCE)
    found = [_nearest_of(points, embed(images[start : start + NEIGHBOURS_AT_ONCE]), start) for start in starts]
    distances, indices = (torch.stack(each) for each in zip(*found, strict=True))
    best, part = distances.min(0)
    return Nearest(best.cpu(), indices.gather(0, part[None]).squeeze(0).cpu())


def nearness(
    points: Sequence[Tensor], training: Tensor, held_out: Tensor, ranked: Tensor, embed: Embedding
) -> list[Nearness]:
    """Of several sets of points, as vectors; ``ranked`` are the positions of the held-out images to compare with."""
    sizes, others = [len(each) for each in points], embed(held_out[ranked])
    to_training = nearest(torch.cat([*points, others]), training, embed)
    to_held_out = nearest(torch.cat(list(points)), held_out, embed)
    distances, indices = (each.split([*sizes, len(others)]) for each in (to_training.distances, to_training.indices))
    expected = len(training) / (len(training) + len(held_out))
    return [
        _compared(Nearest(own, which), beside, distances[-1], expected)
        for own, which, beside in zip(distances, indices, to_held_out.distances.split(sizes), strict=False)
    ]


def _compared(own: Nearest, to_held_out: Tensor, theirs: Tensor, expected: float) -> Nearness:
    from scipy.stats import binomtest, mannwhitneyu

    inside, count = int((own.distances < to_held_out).sum()), len(own.distances)
    return Nearness(
        own,
        theirs,
        float(mannwhitneyu(own.distances.numpy(), theirs.numpy(), alternative="less").pvalue),
        share(inside, count),
        expected,
        float(binomtest(inside, count, expected, alternative="greater").pvalue),
    )


def _nearest_of(points: Tensor, others: Tensor, start: int) -> tuple[Tensor, Tensor]:
    squares = others.square().sum(1) - 2 * points @ others.T
    candidates = squares.topk(min(CANDIDATES, len(others)), largest=False).indices
    exact = torch.stack([(points - others[each]).double().norm(dim=1) for each in candidates.T], 1)
    distances, which = exact.min(1)
    return distances, candidates.gather(1, which[:, None]).squeeze(1) + start
