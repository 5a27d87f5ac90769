"""A coreset's descent, what each of its steps sees of the points, and what is asked of the place where it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from pseudocoresets.core.energy import Energy
from pseudocoresets.core.points import Points
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.core.state import STEP_SIZE, Motion
from pseudocoresets.data.augmentation import AnyAugmentation

View: TypeAlias = Callable[[Points], Points]
"""What one step sees of the points."""


@dataclass(frozen=True)
class Descent:
    """k = ``steps`` steps of size eta = ``points.hyperparameters["step_size"]`` on the potential of the points.

    eta is one number, or, without momentum, one for each step.

        v_{t+1}     = mu v_t + grad_theta U(theta_t; A_t x),           t = 0 .. k-1
        theta_{t+1} = theta_t - eta P v_{t+1}

    A_t is what step t sees: an augmentation of all points, or of ``points_per_step`` random ones (0: all), or of those
    at the positions ``subsets[t]``, with their weights raised so that they sum to the same. mu is ``momentum``. P is
    diagonal, ``speeds`` (1, size), and the identity where there are none.
    """

    energy: Energy
    points: Points
    steps: int
    points_per_step: int = 0
    momentum: float = 0.0
    augmentation: AnyAugmentation | None = None
    subsets: Sequence[Tensor] | None = None
    speeds: Tensor | None = None

    @property
    def step_size(self) -> Tensor:
        """eta, as a number on the device that may be learned, or (steps,) numbers."""
        return self.points.hyperparameters[STEP_SIZE]

    def hastened(self, vector: Tensor) -> Tensor:
        """P times a vector (chains, size)."""
        return vector if self.speeds is None else self.speeds * vector

    def which_step_size(self, step: int) -> int | EllipsisType:
        """Where the size of a step is in ``step_size``."""
        return step if self.step_size.ndim else ...

    @property
    def alike(self) -> bool:
        """Whether all steps have one size, and see all points or random ones."""
        return self.subsets is None and self.step_size.ndim == 0

    def without_gradients(self) -> Descent:
        """The same descent with nothing learned."""
        return replace(self, points=self.points.detached())

    def views(self, randomness: Randomness) -> list[View]:
        """A_0 .. A_{k-1}, drawn now."""
        count = len(self.points)
        subsets = self.subsets or draw_subsets(self.steps, count, self.points_per_step, randomness)
        return [self._view(None if subsets is None else subsets[t], count, randomness) for t in range(self.steps)]

    def _view(self, subset: Tensor | None, count: int, randomness: Randomness) -> View:
        seen = count if subset is None else len(subset)
        augment = None if self.augmentation is None else self.augmentation.draw(seen, randomness)

        def view(points: Points) -> Points:
            if subset is not None:
                x, y, weights = (chosen_rows(each, subset) for each in (points.x, points.y, points.weights))
                points = replace(points, x=x, y=y, weights=count / len(subset) * weights)
            return points if augment is None else replace(points, x=augment(points.x))

        return view

    def potentials(self, points: Points, view: View, theta: Tensor) -> Tensor:
        """U(theta; A x) for each chain, where x are ``points``: those of the descent, or leaves in their place."""
        seen = view(points)
        return self.energy.potential(theta, seen.x, seen.y, seen.weights)

    def potential_gradient(self, points: Points, view: View, theta: Tensor, differentiable: bool) -> Tensor:
        """grad_theta U(theta; A x), with a graph of its own where it must be ``differentiable`` once more."""
        total = self.potentials(points, view, theta).sum()
        (gradient,) = torch.autograd.grad(total, theta, create_graph=differentiable)
        return gradient


def chosen_rows(points: Tensor, index: Tensor) -> Tensor:
    """Rows (*index.shape, ...) of ``points``; unlike ``points[index]``, its gradient can be captured on a GPU."""
    return points.index_select(0, index.flatten()).view(*index.shape, *points.shape[1:])


def draw_subsets(steps: int, count: int, size: int, randomness: Randomness) -> Tensor | None:
    """Which of ``count`` points each step sees, (steps, size): shuffled, then used up before shuffled again.

    None where every step sees them all, which is what a ``size`` of 0 asks for.
    """
    if size == 0 or size >= count:
        return None
    shuffles = -(-steps * size // count)
    device = randomness.device.device
    order = torch.rand(shuffles, count, generator=randomness.device, device=device).argsort(1)
    return order.flatten()[: steps * size].view(steps, size)


class Terminal(NamedTuple):
    """A function L of the ends theta_k (chains, size) of a descent."""

    loss: Tensor
    adjoint: Tensor
    """lambda_k = dL/dtheta_k."""
    length: Tensor
    """The length (chains, 1) of which a radius of differences is a multiple."""


TerminalLoss: TypeAlias = Callable[[Tensor], Terminal]


class Outcome(NamedTuple):
    """A loss with its gradient in what is learned, and where the chains are at the end, without a graph."""

    loss: Tensor
    end: Motion


class Trajectory(Protocol):
    """A descent that can be followed back from its end."""

    def run(self, start: Motion) -> Motion:
        """theta_k and v_k, keeping nothing."""
        ...

    def forwards(self, start: Motion) -> Motion:
        """theta_k and v_k, keeping what ``backwards`` needs."""
        ...

    def backwards(self, adjoint: Tensor, spacing: Tensor) -> Mapping[str, Tensor]:
        """dL/dz for each learned tensor z, given lambda_k (chains, size) and the spacing h (chains, 1)."""
        ...


class Trajectories(Protocol):
    """What makes them: a backend."""

    def trajectory(self, descent: Descent, chains: int, states: int, randomness: Randomness) -> Trajectory:
        """The descent of ``chains`` chains with its views drawn now, keeping about ``states`` states at a time."""
        ...
