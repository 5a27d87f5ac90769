"""A posterior whose potential and gradient are captured, for kernels that run step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from pseudocoresets.core.energy import Energy, blocks_of
from pseudocoresets.core.points import Points
from pseudocoresets.data.augmentation import Transformation

Evaluate: TypeAlias = Callable[[Energy, Mapping[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""U at named tensors, and its gradients in those that ask for one."""


@dataclass(frozen=True)
class RepeatedTarget:
    """U and grad U of weighted points by one function of tensors, which is repeated as it was captured.

    Products are not rounded to TF32: a kernel that accepts or rejects compares U / T, and T is 1 / n.
    """

    energy: Energy
    points: Points
    evaluate: Evaluate
    augment: Transformation | None = None

    @property
    def temperature(self) -> float:
        return self.energy.temperature / self.energy.data_size

    @property
    def blocks(self) -> Sequence[int]:
        return blocks_of(self.energy.model, self.energy.model.size)

    def potential(self, theta: Tensor) -> Tensor:
        return self.energy.potential(theta, self._seen(), self.points.y, self.points.weights)

    def potential_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        tensors = {
            "theta": theta.detach().requires_grad_(),
            "x": self._seen(),
            "y": self.points.y,
            "weights": self.points.weights,
        }
        with whole_products():
            value, gradients = self.evaluate(self.energy, tensors)
        return value, gradients["theta"]

    def _seen(self) -> Tensor:
        return self.points.x if self.augment is None else self.augment(self.points.x)


@contextmanager
def whole_products() -> Iterator[None]:
    """Within the block, cuDNN does not round the factors of a convolution to TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
