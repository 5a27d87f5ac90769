"""Coresets of data that keep arriving, and of data in parts.

A coreset is weighted data, so that those of parts, put together, stand for the whole: the union of (x_i, y_i, w_i) has
the log-likelihood sum_parts sum_i w_i log p(y_i | x_i, theta). To *reduce* the union is to make a coreset of it, from
the Gaussian nearest to the union's posterior.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pseudocoresets.construction.front import construct
from pseudocoresets.core.energy import Model
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.points import AnyRows, Points, Rows, as_rows, random_positions, unit_weights
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.targets import all_points
from pseudocoresets.coreset import Coreset
from pseudocoresets.methods import Method, MomentMatching
from pseudocoresets.models.expectation import SmoothModel
from pseudocoresets.models.functions import as_smooth
from pseudocoresets.models.glm import as_probabilities
from pseudocoresets.sources.gaussian_fit import GaussianFit

PARTS, PART_SIZE = "parts", "part_size"
QUICK = {"iterations": 60, "restarts": 0}
"""Of ``moments``, which starts within a thousandth of a nat of where it leads."""


def merge(
    coresets: Sequence[Coreset],
    model: Model | None = None,
    size: int | None = None,
    method: str | Method = "moments",
    **settings: Any,
) -> Coreset:
    """One coreset of rows for the data of several: their union or, with a ``model``, reduced to ``size`` points.

    Args:
        coresets: Of parts of the data, or of other coresets.
        model: Of the rows; only needed to reduce.
        size: Points to keep; all where it is None.
        method: What reduces them, with ``settings`` as ``construct`` takes them.
    """
    if not coresets:
        raise InputError("Name at least one coreset to merge.")
    if any(each.holds_images for each in coresets):
        raise InputError("Only coresets of rows can be merged; these hold images.")
    if len({(each.x.shape[1:], each.y.shape[1:]) for each in coresets}) > 1:
        raise InputError("These coresets have points or targets of different widths; merge like with like.")
    first = coresets[0]
    union = replace(
        first,
        x=torch.cat([each.x for each in coresets]),
        y=torch.cat([each.y for each in coresets]),
        weights=torch.cat([each.weights for each in coresets]),
        data_size=sum(each.data_size for each in coresets),
        method="merge",
        indices=None,
        configuration={**first.configuration, "merged": [each.method for each in coresets]},
    )
    if size is None or size >= len(union):
        return union
    if model is None:
        raise InputError("To reduce a merged coreset give its model=...; without size=... all points are kept.")
    return _reduced(union, as_smooth(model), size, method, settings)


def update(
    coreset: Coreset,
    new_data: AnyRows,
    model: Model,
    size: int | None = None,
    method: str | Method = "moments",
    **settings: Any,
) -> Coreset:
    """A coreset of its own data and new ones, by merge and reduce: a coreset of at most ``size`` points per part.

    The new data become a part of their own, and as long as the last part stands for as many data as the one before it,
    the two are merged and reduced to one. So each datum passes through log2(n / batch) reductions at most, and there
    are at most that many parts: reducing everything at each update would add up an error each time. ``size`` is that
    of the first coreset unless given; ``merge([coreset], model, size)`` makes one part of all.
    """
    smooth = as_smooth(model)
    rows = all_points(as_rows(new_data))
    smooth.check_data(rows.x, rows.y)
    size = size or int(coreset.configuration.get(PART_SIZE, len(coreset)))
    parts = [*parts_of(coreset), _arrived(coreset, rows)]
    if len(parts[-1]) > size:
        parts[-1] = _reduced(parts[-1], smooth, size, method, settings)
    while len(parts) > 1 and parts[-2].data_size <= parts[-1].data_size:
        last = parts.pop()
        parts[-1] = merge([parts[-1], last], model, size, method, **settings)
    record = {PARTS: [[len(each), each.data_size] for each in parts], PART_SIZE: size}
    whole = merge(parts)
    kept = {name: value for name, value in coreset.configuration.items() if name != "merged"}
    return replace(whole, method="update", configuration={**kept, **record})


def parts_of(coreset: Coreset) -> list[Coreset]:
    """The parts that :func:`update` keeps apart; of any other coreset, itself."""
    recorded = coreset.configuration.get(PARTS)
    if recorded is None:
        return [coreset]
    parts, begin = [], 0
    for count, data_size in recorded:
        own = slice(begin, begin + count)
        x, y, weights = coreset.x[own], coreset.y[own], coreset.weights[own]
        parts.append(replace(coreset, x=x, y=y, weights=weights, data_size=data_size, indices=None))
        begin += count
    return parts


def _arrived(coreset: Coreset, rows: Points) -> Coreset:
    """New rows as a coreset of themselves, with labels as soft as those of ``coreset``."""
    soft = coreset.y.ndim == 2
    y = as_probabilities(rows.y, coreset.y.shape[1], coreset.y.dtype) if soft else rows.y
    return replace(coreset, x=rows.x, y=y, weights=unit_weights(rows.x), data_size=len(rows), indices=None)


def _reduced(union: Coreset, model: SmoothModel, size: int, method: str | Method, settings: dict[str, Any]) -> Coreset:
    source = GaussianFit(model, union.points)
    data = RepeatedRows(union.points, max(size, round(float(union.weights.sum()))))
    if method == MomentMatching.name and "method_options" not in settings:
        settings = {**settings, "method_options": QUICK}
    made = construct(data, source, method, model=model, size=size, **{"check": False, **settings})
    kept = {name: union.configuration[name] for name in ("columns", "merged") if name in union.configuration}
    return replace(made, data_size=union.data_size, source=union.source, configuration={**made.configuration, **kept})


@dataclass(frozen=True)
class RepeatedRows:
    """Weighted points as ``size`` rows without weights: each is repeated in proportion to its weight."""

    points: Points
    size: int

    def __len__(self) -> int:
        return self.size

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.arange(self.size).split(Rows.batch_size):
            yield self.rows(part)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        share = (indices.to(torch.float64) + 0.5) / self.size
        which = torch.searchsorted(self._shares, share).clamp_max(len(self.points) - 1)
        return self.points.x[which], self.points.y[which]

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        return self.rows(random_positions(self.size, size, randomness))

    @cached_property
    def _shares(self) -> Tensor:
        weights = self.points.weights.to(torch.float64)
        return weights.cumsum(0) / weights.sum()
