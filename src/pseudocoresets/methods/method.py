"""What a construction method is: one estimate of a loss whose gradient moves the pseudo-coreset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.options import written
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.gradients import GRADIENTS, GradientEstimator
from pseudocoresets.kernels import KERNELS
from pseudocoresets.methods.problem import Problem

StateShape: TypeAlias = tuple[int | None, ...]


class Loss(NamedTuple):
    """A scalar whose gradient in the points is the method's estimate, and terms worth recording.

    ``state`` is what the method wants to find in ``Points.state`` next time, such as the places of chains.
    """

    value: Tensor
    terms: Mapping[str, Tensor]
    state: Mapping[str, Tensor] = MappingProxyType({})
    energies: tuple[str, ...] = ()
    """Which of the terms are energies per datum, whose size tells that a construction diverged."""


class Hyperparameter(NamedTuple):
    """A positive number, or several, that a method learns beside the points."""

    value: float | tuple[float, ...]
    learning_rate: float


class ConstructionMethod:
    """What gradient methods and solvers say about themselves."""

    name: ClassVar[str] = ""
    """What it is called on the command line and in files; the class's name where it has none."""
    synthetic: ClassVar[bool] = True
    """Whether its points are pseudo-points rather than points of the data."""
    needs_source: ClassVar[bool] = True
    """Whether it asks for samples of the full posterior, so that there must be a source such as experts."""
    is_baseline: ClassVar[bool] = False
    """Whether others must not be worse than it, so that it is not measured itself; simple solvers are."""

    @property
    def called(self) -> str:
        """Its name, or that of its class where it has none."""
        return self.name or type(self).__name__

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"The method '{self.called}'"


class GradientMethod(ConstructionMethod, ABC):
    """One gradient estimator. It knows nothing of files, devices, progress or evaluation."""

    learns_weights: ClassVar[bool] = False
    """Whether it learns weights unless told not to."""
    learns_labels: ClassVar[bool] = False
    """Whether it learns labels unless told not to."""
    learns_points: ClassVar[bool] = True
    """Whether it learns the points themselves, or only what belongs to them."""

    def require_at_least(self, **least: float) -> None:
        """Refuse options below their bounds, such as ``steps=1``; one that is None has none."""
        values = {name: getattr(self, name) for name in least}
        wrong = [
            f"{name} >= {least[name]:g} (got {value:g})"
            for name, value in values.items()
            if value is not None and not value >= least[name]
        ]
        if wrong:
            raise InputError(f"{self.title} needs {', '.join(wrong)}.")

    @property
    def repeats(self) -> bool:
        """Whether every iteration does the same with other numbers, so that a device may capture one and repeat it.

        Then the loss decides nothing on the host: it takes what it needs from ``Randomness.tensor`` or from the
        device's stream, reads no number back, and gives a state of the same tensors each time.
        """
        return False

    @abstractmethod
    def loss(self, points: Points, problem: Problem, randomness: Randomness) -> Loss:
        """The loss at ``points``, with its gradient in those of their tensors that ask for one."""

    def private(self, noise_multiplier: float) -> GradientMethod:
        """The form of this method that reads the data in one noisy release, whose noise has this deviation for each
        unit by which one example changes it; most methods have none."""
        raise InputError(
            f"{self.title} has no private form; use 'dm', private experts with a "
            "method that learns from experts alone, or data that were made privately."
        )

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        """What the method itself learns, such as a step size; usually nothing."""
        return {}

    def state_shapes(self, problem: Problem) -> Mapping[str, StateShape] | None:
        """The shapes of what ``Loss.state`` may hold, which checkpoints are held to; a side that is None may be any.

        None where the method does not say.
        """
        return None

    def options(self) -> dict[str, Any]:
        """What a file records of the method: its options, with parts that are objects written as text."""
        own = [field.name for field in fields(self)] if is_dataclass(self) else sorted(vars(self))
        return {name: _recorded(getattr(self, name)) for name in own}


def _recorded(value: object) -> object:
    if isinstance(value, GradientEstimator):
        return written(value, GRADIENTS)
    return value if isinstance(value, bool | int | float | str | None) else written(value, KERNELS)
