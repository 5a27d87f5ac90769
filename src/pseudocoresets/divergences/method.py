"""What a construction method is: one estimate of a loss whose gradient moves the pseudo-coreset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pseudocoresets.data.augmentation import Augmentation, Transformation
from pseudocoresets.energy import Energy
from pseudocoresets.experts.store import Draw
from pseudocoresets.seeds import Randomness


class ParameterSource(Protocol):
    """Where samples of the (approximate) full-data posterior come from; expert trajectories are one."""

    def draw(self, count: int, latest_start: int | None, ahead: int, randomness: Randomness) -> Draw: ...


class RealData:
    """The full data as bytes on the device; batches are mapped to the model's input space when drawn."""

    def __init__(self, images: Tensor, labels: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        self._images = images
        self._labels = labels
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, size: int, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """``size`` points drawn with replacement: inputs and labels."""
        device = randomness.device.device
        index = torch.randint(len(self), (size,), generator=randomness.device, device=device)
        return self.points(index)

    def points(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of chosen points."""
        return self._transform(self._images[index]), self._labels[index]


@dataclass(frozen=True)
class Points:
    """The pseudo-coreset as a method sees it: points, labels, weights, and what the method itself learns."""

    x: Tensor
    y: Tensor
    weights: Tensor
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def detached(self) -> Points:
        return Points(
            self.x.detach(),
            self.y.detach(),
            self.weights.detach(),
            {name: value.detach() for name, value in self.extras.items()},
        )


@dataclass(frozen=True)
class Problem:
    """What a method may ask: the energy, samples of the full-data posterior, the real data, augmentation."""

    energy: Energy
    experts: ParameterSource | None = None
    real_data: Callable[[], RealData] | None = None
    augmentation: Augmentation | None = None

    def transformation(self, count: int, randomness: Randomness) -> Transformation:
        """One drawn augmentation for ``count`` points, or the identity."""
        return _identity if self.augmentation is None else self.augmentation.draw(count, randomness)


class Loss(NamedTuple):
    """A scalar whose gradient in the points is the method's estimate, and terms worth recording."""

    value: Tensor
    terms: Mapping[str, Tensor]


class Extra(NamedTuple):
    """A positive number that a method learns beside the points."""

    value: float
    learning_rate: float


class Method(Protocol):
    """One gradient estimator. It knows nothing of files, devices, progress or evaluation."""

    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss: ...

    def extras(self) -> Mapping[str, Extra]:
        """What the method itself learns, such as a step size; usually nothing."""
        ...


def _identity(x: Tensor) -> Tensor:
    return x
