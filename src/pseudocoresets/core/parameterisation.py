"""The free numbers behind weighted points that are learned.

    x = scale * free, or the tiles of such images (see ``formation``),
    y by the range of the target: identity (real), exp (positive), sigmoid (unit) or softmax (simplex) of free,
    w = w_0 exp(free), or, where their total is kept, W softmax(free) with W = sum_i w_0i.

Gradient methods learn them as named tensors, solvers by L-BFGS as one flat vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pseudocoresets.core.formation import spread_out
from pseudocoresets.core.points import Points

TargetRange: TypeAlias = Literal["fixed", "real", "positive", "unit", "simplex"]
"""What the target of a synthetic point may become: it keeps a real point's, or any number, a positive one, one between
zero and one, or a vector of class probabilities."""

SMALLEST_TARGET = 1e-3
"""How near to the edge of its range a learned target starts."""
SMALLEST_COUNT = 0.1
"""Where a learned count of zero starts."""
HARD_LABEL = 0.99
"""The probability of its class with which a learned label starts."""
LARGEST_LOG_WEIGHT = 30.0
SMALLEST_WEIGHT = 1e-12


@dataclass(frozen=True)
class Parameterisation:
    """How free tensors become points, starting from ``start``.

    Args:
        start: Where the points begin.
        target_range: What targets may become; ``fixed`` ones are not learned.
        learn_weights: Whether weights are learned.
        keep_total: Whether learned weights keep their sum.
        scale: The unit of each feature of x; None is one for all.
        classes: The length of a vector of class probabilities.
        learn_points: Whether x is learned.
        formation: How many tiles along each side of a stored image are points of their own.
    """

    start: Points
    target_range: TargetRange = "fixed"
    learn_weights: bool = False
    keep_total: bool = True
    scale: Tensor | None = None
    classes: int = 0
    learn_points: bool = True
    formation: int = 1

    def initial(self) -> dict[str, Tensor]:
        """The free tensors at the start, by name: x, y and weights where they are learned."""
        free = {}
        if self.learn_points:
            free["x"] = self.start.x.clone() if self.scale is None else self.start.x / self.scale
        if self.target_range != "fixed":
            free["y"] = self._free_targets()
        if self.learn_weights:
            logarithms = self.start.weights.clamp_min(SMALLEST_WEIGHT).log()
            free["weights"] = logarithms if self.keep_total else torch.zeros_like(self.start.weights)
        return free

    def points(self, free: Mapping[str, Tensor]) -> Points:
        """The points behind the free tensors, differentiable in them."""
        return spread_out(self.stored(free), self.formation)

    def stored(self, free: Mapping[str, Tensor]) -> Points:
        """What a file keeps of them; the points themselves where each stored image is one."""
        return replace(
            self.start,
            x=self._x(free["x"]) if "x" in free else self.start.x,
            y=self._targets(free["y"]) if "y" in free else self.start.y,
            weights=self._weights(free["weights"]) if "weights" in free else self.start.weights,
        )

    def flattened(self, free: Mapping[str, Tensor]) -> Tensor:
        """The free tensors as one vector in double precision."""
        return torch.cat([tensor.detach().flatten().double() for tensor in free.values()])

    def unflattened(self, vector: Tensor) -> dict[str, Tensor]:
        """The free tensors in a vector, differentiable in it."""
        parts = vector.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        """Of the free tensors."""
        return {name: tensor.shape for name, tensor in self.initial().items()}

    def _x(self, free: Tensor) -> Tensor:
        return free if self.scale is None else free * self.scale

    def _weights(self, free: Tensor) -> Tensor:
        if self.keep_total:
            return self.start.weights.sum() * free.softmax(0)
        return self.start.weights * free.clamp(-LARGEST_LOG_WEIGHT, LARGEST_LOG_WEIGHT).exp()

    def _free_targets(self) -> Tensor:
        y = self.start.y
        if self.target_range == "simplex":
            return self._free_probabilities()
        y = y.to(self.start.x.dtype)
        if self.target_range == "positive":
            return torch.where(y > 0, y, SMALLEST_COUNT).log()
        if self.target_range == "unit":  # soft targets stay what they are, hard ones must leave the edge to be moved
            return torch.logit(torch.where((y > 0) & (y < 1), y, y.clamp(SMALLEST_TARGET, 1 - SMALLEST_TARGET)))
        return y.clone()

    def _free_probabilities(self) -> Tensor:
        y = self.start.y
        if y.ndim == 2:
            return y.clamp_min(1e-6).log()
        others = (1 - HARD_LABEL) / max(1, self.classes - 1)
        hard = torch.nn.functional.one_hot(y.long(), self.classes).to(self.start.x.dtype)
        return hard * math.log(HARD_LABEL / others)

    def _targets(self, free: Tensor) -> Tensor:
        if self.target_range == "positive":
            return free.clamp(max=LARGEST_LOG_WEIGHT).exp()
        if self.target_range == "unit":
            return free.sigmoid()
        return free.softmax(-1) if self.target_range == "simplex" else free
