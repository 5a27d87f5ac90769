"""Samples of the full posterior, which methods and protocols start from."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from pseudocoresets.core.seeds import Randomness


class Draw(NamedTuple):
    """Pairs of samples, each (count, parameters); of experts, two snapshots of the same one."""

    start: Tensor
    later: Tensor
    """``expert_epochs`` epochs after ``start``; equal to it for no epochs."""


class PosteriorSource(Protocol):
    """Where samples of the (approximate) full posterior come from: experts, a Gaussian fit, exact draws, long runs."""

    def draw(self, count: int, max_start_epoch: int | None, expert_epochs: int, randomness: Randomness) -> Draw:
        """``count`` independent pairs; ``max_start_epoch`` bounds the epoch of the start, None does not."""
        ...
