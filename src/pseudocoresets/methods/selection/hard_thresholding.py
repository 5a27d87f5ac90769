"""Accelerated iterative hard thresholding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocoresets.methods.selection.hilbert import FrankWolfe, _Sum


@dataclass(frozen=True)
class HardThresholding(FrankWolfe):
    """Hilbert coreset by accelerated iterative hard thresholding (A-IHT II, Zhang et al. 2021), then the best weights.

    It minimises |f - f_w|^2 over w >= 0 with at most m positive entries, in units in which every |f_i| is one. With
    P(v) the m largest entries of max(v, 0) and g_S a gradient restricted to S, the m steepest entries outside supp(z)
    and supp(z),
        v = P(z - mu g_S),   w' = P(v - mu' g_supp(v)),   z = w' + tau (w' - w),
    where mu, mu' and tau are exact line searches. It ends where w settles; the best w is kept.
    """

    iterations: int = 300
    tolerance: float = 1e-5

    name: ClassVar[str] = "a-iht"
    is_baseline: ClassVar[bool] = False

    def _choose(self, current: _Sum, size: int) -> None:
        fit = _SquaredError(current)
        w = z = torch.zeros_like(fit.target)
        best, lowest = w, 0.0
        for _ in range(self.iterations):
            before, w = w, _descended(fit, z, _steepest(fit.gradient(z), z, size), size)
            w = _descended(fit, w, w > 0, size)
            value = float(w @ (fit.gradient(w) - fit.target))
            best, lowest = (w, value) if value < lowest else (best, lowest)
            move = w - before
            if float(move.norm()) <= self.tolerance * float(w.norm()):
                break
            z = w + fit.best_step(w, move) * move
        chosen = best.nonzero()[:, 0]
        weights = (best * fit.scale)[chosen]
        current.weights = dict(zip(chosen.tolist(), weights.tolist(), strict=True))


class _SquaredError:
    """|f - f_w|^2 / 2 as a function of w in units of 1 / |f_i|."""

    def __init__(self, current: _Sum) -> None:
        self._vectors = current.vectors
        self.scale = torch.from_numpy(current.inverse_norms)
        self.target = self.scale * torch.from_numpy(current.with_target)

    def gradient(self, w: Tensor) -> Tensor:
        return self._products(w) - self.target

    def best_step(self, w: Tensor, direction: Tensor) -> float:
        """The step that minimises the error along a direction; none where the direction changes nothing."""
        curvature = float(direction @ self._products(direction))
        return -float(self.gradient(w) @ direction) / curvature if curvature > 0 else 0.0

    def _products(self, w: Tensor) -> Tensor:
        """<f_i, f_w> / |f_i| for every i."""
        chosen = w.nonzero()[:, 0]
        return self.scale * self._vectors.with_sum((self.scale * w)[chosen], chosen)


def _descended(fit: _SquaredError, w: Tensor, support: Tensor, size: int) -> Tensor:
    """P(w - mu g_S) with the mu that is best before P."""
    direction = torch.where(support, -fit.gradient(w), torch.zeros_like(w))
    moved = (w + fit.best_step(w, direction) * direction).clamp_min(0)
    kept = moved.topk(size).indices
    return torch.zeros_like(moved).index_copy(0, kept, moved[kept])


def _steepest(gradient: Tensor, z: Tensor, size: int) -> Tensor:
    """Where z is not zero, and the ``size`` other places where the error falls most as an entry grows."""
    occupied = z != 0
    outside = (-gradient).masked_fill(occupied, -torch.inf)
    chosen = outside.topk(size)
    return occupied.index_fill(0, chosen.indices[chosen.values > 0], True)
