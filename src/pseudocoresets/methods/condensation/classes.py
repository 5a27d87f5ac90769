"""What condensation does class by class: the synthetic images of each class, and the means of their embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.core.points import Points

COUNTS = "counts"
"""The name under which the numbers of points per class are carried on the host, so that no iteration waits for them."""


def class_counts(points: Points, classes: int) -> Tensor:
    """How many points each class has (classes,), on the host; all of them where labels are soft."""
    carried = points.state.get(COUNTS)
    if carried is not None:
        return carried.cpu()
    if points.y.is_floating_point():
        return torch.full((classes,), len(points))
    return points.y.bincount(minlength=classes).cpu()


def by_class(points: Points, counts: Tensor) -> Mapping[int, Points]:
    """The points of each class that has some, with weights a_jc / sum_j a_jc, where a_jc = w_j y_jc.

    Soft labels make every point one of every class.
    """
    if points.y.is_floating_point():
        members = membership(points, len(counts))
        return {
            c: Points(points.x, torch.full_like(points.y[:, 0], c, dtype=torch.int64), _shares(members[:, c]))
            for c in range(len(counts))
        }
    order, sizes = points.y.argsort(stable=True), counts.tolist()
    x, y, weights = (each[order].split(sizes) for each in (points.x, points.y, points.weights))
    return {c: Points(x[c], y[c], _shares(weights[c])) for c, size in enumerate(sizes) if size}


def membership(points: Points, classes: int) -> Tensor:
    """a_jc = w_j y_jc (points, classes)."""
    labels = points.y if points.y.is_floating_point() else F.one_hot(points.y, classes)
    return points.weights[:, None] * labels


def class_means(features: Tensor, members: Tensor) -> Tensor:
    """sum_i a_ic z_i / sum_i a_ic (classes, features); 0 for a class without members."""
    total = members.sum(0)
    return members.to(features).T @ features / torch.where(total > 0, total, 1.0)[:, None]


def _shares(weights: Tensor) -> Tensor:
    return weights / weights.sum()
